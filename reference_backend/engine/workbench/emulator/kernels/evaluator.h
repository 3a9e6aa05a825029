// SPDX-License-Identifier: Apache-2.0
/*!
 * \file evaluator.h
 * \brief The evaluation of vector programs.
 */
#ifndef EMULATOR_KERNELS_EVALUATOR_H_
#define EMULATOR_KERNELS_EVALUATOR_H_

#include <cstddef>
#include <cstdint>

#include "internal.h"

namespace npu::emulator {

/*! \brief An input of a vector program, and how it broadcasts. Dimensions are merged where
 *  possible; innermost first. */
struct Broadcast {
  const char* data = nullptr;
  npu_dtype dtype = NPU_FLOAT32;
  size_t element = 0;
  int rank = 0;
  int64_t sizes[NPU_MAX_RANK];
  int64_t strides[NPU_MAX_RANK];

  Broadcast() = default;
  Broadcast(const TensorView& data, const TensorView& out);

  /*! \brief Where the input has the element for an element of the output. */
  int64_t OffsetOf(int64_t index) const {
    int64_t offset = 0;
    for (int d = 0; d < rank; ++d) {
      // A division takes as long as many additions, and usually the last one is not needed.
      bool last = index < sizes[d];
      offset += (last ? index : index % sizes[d]) * strides[d];
      index = last ? 0 : index / sizes[d];
    }
    return offset;
  }

  /*! \brief Calls `body(offset, count)` for elements [index, index + count) in the order of the
   *  output, in runs that lie on the innermost dimension. */
  template <typename Body>
  void ForRuns(int64_t index, int64_t count, const Body& body) const {
    while (count > 0) {
      int64_t run = sizes[0] - (index < sizes[0] ? index : index % sizes[0]);
      if (run > count) run = count;
      body(OffsetOf(index), run);
      index += run;
      count -= run;
    }
  }
};

/*! \brief Takes the results of a matrix product, tile by tile. `registers` is private scratch
 * memory of the thread. */
class TileStore {
 public:
  virtual ~TileStore() = default;
  /*! \brief Prepares registers that another store may have used. */
  virtual void Begin(float* registers) const = 0;
  /*! \brief Stores the upper left part of a tile of up to kMostRows rows. */
  virtual void StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t row,
                         int64_t column, float* registers) const = 0;
  /*! \brief Sets how and where to finish a tile, instead of storing it; false if only StoreTile
   *  can. */
  virtual bool Finishes(int64_t, int64_t, int64_t, ProductTile*) const { return false; }
};

/*!
 * \brief Evaluates a vector program in float32, block by block, and stores the results.
 *
 * The output is seen as a matrix with rows of `row_length` elements; a block is a piece of one row
 * or of several. Values lie in private scratch memory of the thread, the registers. Programs of
 * integers that FitInt32 finds can be evaluated in int32 instead, where floats hold int32.
 */
class Evaluator : public TileStore {
 public:
  /*! \brief The most elements of a block. */
  static constexpr int64_t kBlock = 512;

  /*! \brief The size of one thread's registers, in numbers. */
  static int64_t Registers(const VectorProgram& program) {
    return program.instruction_count * kBlock;
  }

  Evaluator(const VectorProgram& program, const TensorView& out, int64_t row_length,
            bool integers = false);

  /*! \brief Rows of an output if nothing else determines them: those along which inputs repeat. */
  static int64_t RowLength(const VectorProgram& program, const TensorView& out);

  /*! \brief Sets what is the same for all elements. */
  void Begin(float* registers) const override;

  /*! \brief Stores a piece of one row, of any length. `values` is input 0 of an epilogue, else
   *  null. */
  void StoreRun(const float* values, int64_t count, int64_t row, int64_t column,
                float* registers) const;

  /*! \brief Stores lines of one row, which lie `stride` apart, side by side; only if
   *  StoresLines(). */
  void StoreLines(const float* values, int64_t lines, int64_t columns, int64_t stride, int64_t row,
                  int64_t column) const;
  bool StoresLines() const { return finish_; }
  /*! \brief The arguments of Simd::finish for a whole row, and where it goes; only if
   *  StoresLines(). */
  Finish FinishOfRow(int64_t row) const {
    Finish how;
    FinishOf(row, 0, &how);
    return how;
  }
  float* PlaceOfRow(int64_t row) const {
    return reinterpret_cast<float*>(out_) + row * row_length_;
  }

  void StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t row, int64_t column,
                 float* registers) const override;
  bool Finishes(int64_t rows, int64_t row, int64_t column, ProductTile* tile) const override;

 private:
  struct Input : Broadcast {
    // It is contiguous.
    bool dense;
    // It is one number; it is one number per row; its rows need no conversion.
    bool uniform, uniform_rows, plain_rows;
  };

  void LoadOne(const Input& input, int64_t offset, int64_t count, float* out) const;
  void LoadRun(const Input& input, int64_t index, int64_t count, float* out) const;
  void LoadTile(const Input& input, int64_t rows, int64_t columns, int64_t row, int64_t column,
                float* out) const;
  // Whether Simd::finish can compute the program; sets its arguments.
  bool FindFinish();
  // Where an addend of a row begins, its row stride and column step; returns for how many rows they
  // hold.
  int64_t RowsOf(int32_t number, int64_t row, int64_t column, const float** first, int64_t* stride,
                 int* step) const;
  int64_t FinishOf(int64_t row, int64_t column, Finish* how) const;
  void StoreBlock(const float* values, int64_t rows, int64_t columns, int64_t row, int64_t column,
                  float* registers) const;

  const Simd& simd_;
  const VectorProgram program_;
  char* out_;
  npu_dtype dtype_;
  size_t element_;
  int64_t row_length_;
  // Whether values are int32; the type that needs no conversion, and conversions from and to
  // others.
  bool integers_;
  npu_dtype plain_;
  void (*load_)(npu_dtype dtype, const void* data, int64_t count, float* out);
  void (*store_)(npu_dtype dtype, const float* data, int64_t count, void* out);
  Input inputs_[NPU_MAX_VECTOR_INPUTS];
  // The addend of the results, or -1, and their limits; only if `finish_`.
  bool finish_ = false;
  int32_t addends_[2] = {-1, -1};
  float least_, most_;
};

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_EVALUATOR_H_
