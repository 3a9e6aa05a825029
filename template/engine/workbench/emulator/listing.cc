// SPDX-License-Identifier: Apache-2.0
/*!
 * \file listing.cc
 * \brief A program as text for people.
 */
#include "listing.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>
#include <type_traits>

#include "events.h"
#include "rules.h"

namespace npu::emulator {
namespace {

constexpr const char* kPoolKinds[] = {"max", "average", "average_include_pad", "average_adaptive"};
constexpr const char* kReduceKinds[] = {"sum", "mean", "max", "min", "product"};

/*! \brief Text padded to a width, on the left or on the right. */
std::string Right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}
std::string Left(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

/*! \brief Text on one line: names come from elsewhere. */
std::string OneLine(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char letter) { return letter < ' '; }, ' ');
  return text;
}

template <typename T>
std::string List(const T* values, int32_t count) {
  std::string text = "[";
  for (int32_t i = 0; i < count; ++i) text += Join(i > 0 ? ", " : "", values[i]);
  return text + "]";
}

bool AnyNot(const int64_t* values, int32_t count, int64_t usual) {
  return std::any_of(values, values + count, [usual](int64_t value) { return value != usual; });
}

std::string Decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

/*! \brief Writes the listing of one program. */
class Lister {
 public:
  Lister(const Program& program, const Accesses& accesses, const Timeline& timeline)
      : program_(program), accesses_(accesses), timeline_(timeline) {}

  std::string Run() {
    ListMachine();
    ListMemories();
    ListTensors();
    ListCommands();
    ListTotals();
    return std::move(text_);
  }

 private:
  template <typename... Parts>
  void Line(const Parts&... parts) {
    text_ += Join(parts...) + "\n";
  }

  template <typename T>
  void Value(const char* key, const T& value) {
    Line("  ", Left(key, 26), value);
  }

  void ListMachine() {
    const Machine& machine = program_.machine;
    Line("machine");
    Value("scratchpad_bytes", machine.scratchpad_bytes);
    Value("dram_bytes", machine.dram_bytes);
    Value("max_tile_bytes", machine.max_tile_bytes);
    Value("cores", machine.cores);
    Value("matrix_rows", machine.matrix_rows);
    Value("matrix_columns", machine.matrix_columns);
    Value("weight_buffers", machine.weight_buffers);
    Value("vector_lanes", machine.vector_lanes);
    Value("dram_megabytes_per_second", machine.dram_megabytes_per_second);
    Value("dma_latency_cycles", machine.dma_latency_cycles);
    Value("power_mode", Join(Name(machine.power_mode), " (", machine.FrequencyMHz(), " MHz)"));
    Value("precision", Name(machine.precision));
    Value("threads", machine.threads);
    Value("pace", machine.pace);
  }

  std::string Shape(const Desc& desc) const { return OneLine(ToString(desc, program_.symbols)); }

  std::string Where(const Place& place) const {
    bool bound = place.memory == Memory::kInput || place.memory == Memory::kOutput;
    return Join(Name(place.memory), bound ? std::to_string(place.index) : "");
  }

  void ListMemories() {
    if (!program_.symbols.empty()) Line("\nsymbols (sizes and times below are those of the most)");
    for (const Symbol& symbol : program_.symbols) {
      Line("  ", OneLine(symbol.name), ": 1 to ", symbol.bound);
    }
    Line("\nmemories, in bytes");
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const Desc& desc = program_.inputs[i];
      Line("  ", Left(Join("input", i), 12), Right(Join(MostBytes(desc)), 12), "  ", Shape(desc));
    }
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const Desc& desc = program_.outputs[i];
      Line("  ", Left(Join("output", i), 12), Right(Join(MostBytes(desc)), 12), "  ", Shape(desc));
    }
    Line("  ", Left("constants", 12), Right(Join(program_.constant_bytes), 12));
    Line("  ", Left("arena", 12), Right(Join(program_.arena_bytes), 12), "  of ",
         program_.arena_lower_bound, " that are alive at once");
    Line("  ", Left("scratchpad", 12), Right(Join(ScratchpadBytes(program_)), 12), "  of ",
         program_.machine.scratchpad_bytes);
  }

  /*! \brief The properties of all tensors that lie in exactly the same bytes. */
  struct Region {
    npu_tensor tensor;
    size_t first, last;
    size_t commands = 0;
  };

  void ListTensors() {
    // Sorted by place in memory.
    std::map<std::tuple<Memory, uint32_t, uint64_t, uint64_t>, Region> regions;
    for (size_t i = 0; i < program_.commands.size(); ++i) {
      for (const Access* access = accesses_.begin(i); access != accesses_.end(i); ++access) {
        const Tensor& tensor = program_.tensors[access->tensor];
        const Place& place = tensor.place;
        uint64_t end = place.offset + MostBytes(tensor);
        auto added = regions.emplace(std::make_tuple(place.memory, place.index, place.offset, end),
                                     Region{access->tensor, i, i});
        added.first->second.last = i;
        ++added.first->second.commands;
      }
    }
    Line(
        "\nmemory map: bytes, the commands that touch them (first to last), shape and label of the",
        " first");
    for (const auto& [key, region] : regions) {
      const Tensor& tensor = program_.tensors[region.tensor];
      Line("  ",
           Left(Join(Where(tensor.place), "[", std::get<2>(key), "..", std::get<3>(key), ")"), 34),
           Left(Join(region.first, "-", region.last), 14), Shape(tensor.desc),
           tensor.packed_bytes != 0 ? " packed" : "", LabelOf(region.first));
    }
  }

  std::string LabelOf(size_t command) const {
    const std::string& label = program_.labels[program_.commands[command].label];
    return label.empty() ? "" : "  ; " + OneLine(label);
  }

  std::string Operand(npu_tensor index) const {
    const Tensor& tensor = program_.tensors[index];
    return Join(Where(tensor.place), "[", tensor.place.offset, "] ", Shape(tensor.desc),
                tensor.packed_bytes != 0 ? " packed" : "");
  }

  void ListCommands() {
    Line("\ncommands: number, engine, cycles from start to end, operation  ; label");
    for (size_t i = 0; i < program_.commands.size(); ++i) {
      const Command& command = program_.commands[i];
      const TimeSpan& interval = timeline_.intervals()[i];
      std::string operation =
          std::visit([&](const auto& op) { return Operation(op, command); }, command.op);
      Line(Right(std::to_string(i), 6), "  ", Left(NameOf(interval.engine, interval.core), 10),
           Right(Join(interval.start, "-", interval.end), 21), "  ", operation, Vector(command),
           LabelOf(i));
    }
  }

  std::string Vector(const Command& command) const {
    if (command.instructions.empty()) return "";
    bool epilogue = !std::holds_alternative<npu_elementwise>(command.op);
    std::string text = epilogue ? " then {" : " {";
    for (size_t i = 0; i < command.instructions.size(); ++i) {
      const npu_vector_instruction& instruction = command.instructions[i];
      text += Join(i > 0 ? "; " : "", "v", i, " = ");
      if (instruction.opcode == NPU_VECTOR_CONSTANT) {
        text += Join(instruction.immediate);
      } else if (instruction.opcode == NPU_VECTOR_LOAD) {
        bool accumulator = epilogue && instruction.a == 0;
        text += accumulator ? "result" : Operand(command.inputs[instruction.a]);
      } else {
        const VectorOpcode& opcode = kVectorOpcodes[instruction.opcode];
        text += opcode.name;
        const int32_t operands[] = {instruction.a, instruction.b, instruction.c};
        for (int k = 0; k < opcode.operands; ++k) {
          text += Join(k > 0 ? ", v" : " v", operands[k]);
        }
      }
    }
    return text + "}";
  }

  std::string Operation(const npu_matmul& op, const Command&) const {
    return Join(Operand(op.out), " = matmul ", Operand(op.a),
                op.transpose_a != 0 ? " transposed, " : ", ", Operand(op.b),
                op.transpose_b != 0 ? " transposed" : "",
                ZeroPoints(op.a_zero_point, op.b_zero_point), Scales(op));
  }

  std::string Scales(const npu_matmul& op) const {
    if (op.b_block == 0) return "";
    std::string text = Join(" scaled by ", Operand(op.b_scales), " in blocks of ", op.b_block);
    if (op.b_zero_points >= 0) text += Join(" zero points ", Operand(op.b_zero_points));
    return text;
  }

  static std::string ZeroPoints(int32_t left, int32_t right) {
    return left == 0 && right == 0 ? "" : Join(" zero points ", left, " ", right);
  }

  /*! \brief The properties that convolutions and pools share, where they are not the default. */
  template <typename Op>
  std::string Windows(const Op& op) const {
    std::string text;
    int32_t rank = op.spatial_rank;
    if (AnyNot(op.strides, rank, 1)) text += " strides " + List(op.strides, rank);
    if (AnyNot(op.dilations, rank, 1)) text += " dilations " + List(op.dilations, rank);
    if (AnyNot(op.pads_begin, rank, 0) || AnyNot(op.pads_end, rank, 0)) {
      text += Join(" pads ", List(op.pads_begin, rank), " ", List(op.pads_end, rank));
    }
    return text;
  }

  std::string Operation(const npu_convolution& op, const Command&) const {
    return Join(Operand(op.out), " = convolution ", Operand(op.data), ", ", Operand(op.weight),
                Windows(op), op.groups != 1 ? Join(" groups ", op.groups) : "",
                ZeroPoints(op.data_zero_point, op.weight_zero_point));
  }

  std::string Operation(const npu_pool& op, const Command&) const {
    std::string text =
        Join(Operand(op.out), " = pool ", kPoolKinds[op.kind], " ", Operand(op.data));
    if (op.kind == NPU_POOL_AVERAGE_ADAPTIVE) return text;
    return Join(text, " window ", List(op.window, op.spatial_rank), Windows(op));
  }

  std::string Operation(const npu_elementwise& op, const Command&) const {
    return Join(Operand(op.out), " = elementwise");
  }

  std::string Operation(const npu_reduce& op, const Command&) const {
    std::string axes;
    for (int32_t d = 0; d < NPU_MAX_RANK; ++d) {
      if ((op.axes >> d & 1) != 0) axes += Join(axes.empty() ? "" : ", ", d);
    }
    return Join(Operand(op.out), " = reduce ", kReduceKinds[op.kind], " ", Operand(op.data),
                " axes [", axes, "]");
  }

  std::string Operation(const Transfer& op, const Command&) const {
    int32_t rank = program_.tensors[op.out].desc.rank;
    std::string text = Operand(op.out);
    if (AnyNot(op.out_offset, rank, 0)) text += " from " + List(op.out_offset, rank);
    if (AnyNot(op.out_step, rank, 1)) text += " step " + List(op.out_step, rank);
    if (op.data >= 0) {
      text += " = " + Operand(op.data);
      if (AnyNot(op.data_offset, rank, 0)) text += " from " + List(op.data_offset, rank);
      if (AnyNot(op.data_step, rank, 1)) text += " step " + List(op.data_step, rank);
      bool in_order = true;
      for (int32_t d = 0; d < rank; ++d) in_order = in_order && op.permutation[d] == d;
      if (!in_order) text += " permuted " + List(op.permutation, rank);
    }
    if (op.fill != 0) text += Join(op.data >= 0 ? ", else " : " = ", op.fill_value);
    return text;
  }

  std::string Operation(const npu_gather& op, const Command&) const {
    return Join(Operand(op.out), " = gather ", Operand(op.data), ", ", Operand(op.indices),
                " axis ", op.axis, op.elementwise != 0 ? " elementwise" : "");
  }

  std::string Operation(const npu_update& op, const Command&) const {
    return Join(Operand(op.out), " update ", Operand(op.value), " at ", Operand(op.positions),
                " axis ", op.axis);
  }

  /*! \brief A plain operation. */
  template <typename Op>
  std::string Operation(const Op& op, const Command&) const {
    std::vector<std::string> texts;
    ForEachOperand(op, [&](npu_tensor tensor) { texts.push_back(Operand(tensor)); });
    return Join(Operand(op.out), " = ", TextOf(op, texts));
  }

  void ListTotals() {
    const RunCounters& counters = timeline_.counters();
    Line("\ntotals");
    Value("commands", counters.commands);
    Value("matrix operations", counters.matrix_operations);
    Value("cycles", counters.cycles);
    Value("microseconds", Decimal(static_cast<double>(counters.cycles) /
                                      static_cast<double>(counters.frequency_mhz),
                                  3));
    for (int engine = 0; engine < kEngineCount; ++engine) {
      bool cores = engine == kEngineMatrix || engine == kEngineVector;
      auto all = static_cast<double>(counters.cycles) * (cores ? program_.machine.cores : 1);
      auto busy = static_cast<double>(counters.busy_cycles[engine]);
      Value(Name(static_cast<Engine>(engine)),
            Join(counters.busy_cycles[engine], " cycles busy (",
                 Decimal(all > 0 ? 100 * busy / all : 0, 1), " %), ",
                 counters.stalled_cycles[engine], " stalled"));
    }
    Value("dram",
          Join(counters.dram_bytes_read, " bytes read, ", counters.dram_bytes_written, " written"));
    Value("scratchpad", Join(counters.scratchpad_bytes_read, " bytes read, ",
                             counters.scratchpad_bytes_written, " written"));
  }

  const Program& program_;
  const Accesses& accesses_;
  const Timeline& timeline_;
  std::string text_;
};

}  // namespace

std::string Listing(const Program& program, const Accesses& accesses, const Timeline& timeline) {
  return Lister(program, accesses, timeline).Run();
}

}  // namespace npu::emulator
