// SPDX-License-Identifier: Apache-2.0
/*!
 * \file isa_semantics.h
 * \brief What each instruction of isa.py does, for the emulator.
 */
#ifndef ISA_SEMANTICS_H_
#define ISA_SEMANTICS_H_

#include <algorithm>
#include <cstring>

#include "isa_emulator/elements.h"
#include "isa_emulator/products.h"
#include "isa_emulator/state.h"

namespace npu::isa {

// ---- The core ----

inline void Halt(State& s, const HaltFields&) { s.Halt(); }

inline void Drain(State&, const DrainFields&) {
  // The table says what it waits for.
}

inline void Set(State& s, const SetFields& f) { s.Set(f.to, f.value); }

inline void Step(State& s, const StepFields& f) {
  const int64_t a = s.Get(f.a);
  s.Set(f.to, a);
  s.Step(f.to, f.value);
}

inline void Alu(State& s, const AluFields& f) {
  Operate(s, f.to, f.a, f.b, f.op.name, f.type.name);
}

inline void Fun(State& s, const FunFields& f) {
  s.SetReal(f.to, Apply(f.fun.name, s.GetReal(f.a)));
}

inline void Cast(State& s, const CastFields& f) { Cast(s, f.to, f.a, f.source.name, f.type.name); }

inline void Lds(State& s, const LdsFields& f) { LoadElement(s, f.to, f.source, f.type.name); }

inline void Sts(State& s, const StsFields& f) { StoreElement(s, f.a, f.target, f.type.name); }

inline void Branch(State& s, const BranchFields& f) {
  if (f.when.name == Name::kAlways || (f.when.name == Name::kZero) == (s.Get(f.a) == 0)) {
    s.Branch(f.lines);
  }
}

inline void Loop(State& s, const LoopFields& f) { s.Enter(f.count); }

inline void Next(State& s, const NextFields& f) {
  s.Step(f.r0, f.v0);
  s.Step(f.r1, f.v1);
  s.Again();
}

// ---- Moves ----

template <typename Fields>
void Move(State& s, const Fields& f) {
  Copy(s, {1, f.count0, f.bytes}, {f.target, 1, {0, f.target0, 1}}, {f.source, 1, {0, f.source0, 1}});
}

inline void Ld(State& s, const LdFields& f) { Move(s, f); }

inline void St(State& s, const StFields& f) { Move(s, f); }

// ---- The array ----

inline void Mm(State& s, const MmFields& f) {
  const bool adds = f.mode.name == Name::kAdd;
  const auto row_bytes = static_cast<size_t>(4 * f.n);
  const Counts counts = {1, f.rows0, f.n};
  const View target = {f.target, 4, {0, f.target0, 4}};
  const View old = adds ? Readable(s, target, counts, target, counts) : target;
  const Weights weights = {f.weights, f.type.name, f.weights0, f.k, f.n};
  const BinaryRow add = RowOf(Name::kAdd, f.type.name == Name::kF32 ? Name::kF32 : Name::kI32);
  uint8_t* const totals = s.Borrow(kMostRows * row_bytes);
  uint8_t* const before = s.Borrow(row_bytes);
  const uint8_t* rows[kMostRows];
  for (int64_t begin = 0; begin < f.rows0; begin += kMostRows) {
    const int64_t some = std::min(kMostRows, f.rows0 - begin);
    for (int64_t i = 0; i < some; ++i) rows[i] = f.source + (begin + i) * f.source0;
    MultiplyRows(s, rows, some, f.type.name, weights, totals);
    for (int64_t i = 0; i < some; ++i) {
      uint8_t* const total = totals + static_cast<size_t>(i) * row_bytes;
      if (adds) {
        std::memcpy(before, old.data + (begin + i) * old.strides[1], row_bytes);
        add(total, before, total, f.n);
      }
      std::memcpy(f.target + (begin + i) * f.target0, total, row_bytes);
    }
  }
}

}  // namespace npu::isa

#endif  // ISA_SEMANTICS_H_
