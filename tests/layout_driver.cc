// The emulator as a driver that declares layouts; a test builds it in the emulator's place.
//
// It declares channels last for convolutions, pools and depthwise weights, or blocks of channels,
// and computes them with the emulator, between its own transposes.
//
//   EMULATOR_DIR     the folder of the emulator's libraries
//   EMULATOR_LOG     a file that gets a line for each builder and each of its operations;
//                    "transpose" for a copy that changes the order of dimensions, "in blocks" after
//                    a convolution whose result has blocks
//   EMULATOR_LAYOUT  "blocked" declares blocks of 2 channels where they divide the channels;
//                    "indivisible" declares blocks that do not, "negative" impossible ones, "wrong"
//                    an invalid order; "declined" declines all transposes
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "npu_driver.h"

namespace {

const npu_build_api* emulator;

template <typename Api>
const Api* Load(const char* library, const char* name, uint32_t version) {
  const std::string path = std::string(std::getenv("EMULATOR_DIR")) + "/" + library;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  return reinterpret_cast<const Api* (*)(uint32_t)>(dlsym(handle, name))(version);
}

void Log(const std::string& line) {
  std::ofstream(std::getenv("EMULATOR_LOG"), std::ios::app) << line << "\n";
}

std::string Behaviour() {
  const char* text = std::getenv("EMULATOR_LAYOUT");
  return text == nullptr ? "" : text;
}

/*! \brief The shapes of a builder's tensors, and why it declined. */
struct Book {
  std::map<npu_tensor, npu_tensor_desc> descs;
  std::string reason;
};

Book& BookOf(const npu_builder* builder) {
  static std::mutex mutex;
  static std::map<const npu_builder*, std::unique_ptr<Book>> books;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Book>& book = books[builder];
  if (book == nullptr) book = std::make_unique<Book>();
  return *book;
}

npu_status Create(const npu_option* options, size_t count, npu_builder** builder) {
  const npu_status status = emulator->create(options, count, builder);
  if (status == NPU_OK) BookOf(*builder) = Book();
  Log("create");
  return status;
}

const char* Error(const npu_builder* builder) {
  const bool declined = builder != nullptr && !BookOf(builder).reason.empty();
  return declined ? BookOf(builder).reason.c_str() : emulator->error(builder);
}

npu_status Note(npu_builder* builder, npu_status status, const npu_tensor_desc* desc,
                const npu_tensor* tensor) {
  if (status == NPU_OK) BookOf(builder).descs[*tensor] = *desc;
  return status;
}

npu_status AddInput(npu_builder* b, const npu_tensor_desc* desc, npu_tensor* tensor) {
  Log("input");
  return Note(b, emulator->add_input(b, desc, tensor), desc, tensor);
}
npu_status AddConstant(npu_builder* b, const npu_tensor_desc* desc, const void* data, size_t bytes,
                       npu_tensor* tensor) {
  return Note(b, emulator->add_constant(b, desc, data, bytes, tensor), desc, tensor);
}
npu_status AddTensor(npu_builder* b, const npu_tensor_desc* desc, npu_tensor* tensor) {
  return Note(b, emulator->add_tensor(b, desc, tensor), desc, tensor);
}
npu_status AddView(npu_builder* b, npu_tensor data, const npu_tensor_desc* desc,
                   npu_tensor* tensor) {
  return Note(b, emulator->add_view(b, data, desc, tensor), desc, tensor);
}

using Order = std::vector<int>;

Order ChannelsLast(int rank) {
  Order order = {0};
  for (int i = 2; i < rank; ++i) order.push_back(i);
  order.push_back(1);
  return order;
}

Order KernelFirst(int rank) {
  Order order;
  for (int i = 1; i < rank; ++i) order.push_back(i);
  order.push_back(0);
  return order;
}

bool IsDepthwise(int64_t groups, const npu_tensor_desc& weight) {
  return groups > 1 && weight.dims[1].size == 1;
}

/*! \brief How a tensor is stored: the order of its dimensions. The first ones may be two, blocks
 *  and places in them. */
struct Form {
  Order order;
  std::vector<bool> blocked;
};

constexpr int kBlock = 2;

/*! \brief [N, C / block, spatial..., block]; channels last where the block does not divide C. */
Form DataForm(bool is_blocked, int rank) {
  if (!is_blocked) return {ChannelsLast(rank), {}};
  Order order = {0, 1};
  for (int i = 3; i <= rank; ++i) order.push_back(i);
  order.push_back(2);
  return {order, {false, true}};
}

/*! \brief Of a depthwise weight [O / block, spatial..., 1, block], else
 *  [O / block, I / block, spatial..., block of I, block of O]. */
Form BlockedWeightForm(bool is_depthwise, int rank) {
  Order order = {0};
  if (!is_depthwise) order.push_back(2);
  for (int i = 2; i < rank; ++i) order.push_back(is_depthwise ? i + 1 : i + 2);
  order.push_back(is_depthwise ? 2 : 3);
  order.push_back(1);
  return {order, {true, !is_depthwise}};
}

Form WeightForm(bool is_depthwise, int rank) {
  return {is_depthwise ? KernelFirst(rank) : ChannelsLast(rank), {}};
}

bool HasBlocks(const npu_tensor_desc& desc, int dim) {
  return Behaviour() == "blocked" && desc.dims[dim].size % kBlock == 0;
}

void Answer(const Form& form, int32_t* order) {
  for (size_t i = 0; i < form.order.size(); ++i) order[i] = form.order[i];
}

npu_status Layout(npu_builder*, npu_layout* layout) {
  const int rank = layout->data.rank;
  const bool depthwise = IsDepthwise(layout->groups, layout->weight);
  const bool data_blocked = HasBlocks(layout->data, 1), out_blocked = HasBlocks(layout->out, 1);
  Answer(DataForm(data_blocked, rank), layout->order);
  layout->data_block = data_blocked ? kBlock : 0;
  if (data_blocked != out_blocked) {
    Answer(DataForm(out_blocked, rank), layout->out_order);
    layout->out_block = out_blocked ? kBlock : 0;
  }
  if (layout->operation == NPU_OPERATION_CONVOLUTION) {
    const bool blocked =
        HasBlocks(layout->weight, 0) && (depthwise || HasBlocks(layout->weight, 1));
    const auto form = blocked ? BlockedWeightForm : WeightForm;
    Answer(form(depthwise, rank), layout->weight_order);
    if (blocked) layout->weight_block[0] = kBlock;
    if (blocked && !depthwise) layout->weight_block[1] = kBlock;
  }
  if (Behaviour() == "wrong") std::memset(layout->order, 0, sizeof(layout->order));
  if (Behaviour() == "indivisible") layout->data_block = 3;
  if (Behaviour() == "negative") layout->weight_block[1] = -1;
  return NPU_OK;
}

/*! \brief The shape of a stored tensor with blocks as dimensions, not in another order. */
npu_tensor_desc SplitDesc(npu_builder* b, npu_tensor stored, const Form& form) {
  npu_tensor_desc desc = BookOf(b).descs[stored];
  for (int i = 0; i < desc.rank; ++i) desc.dims[form.order[i]] = BookOf(b).descs[stored].dims[i];
  return desc;
}

/*! \brief A tensor of the emulator in the header's order, and with blocks as dimensions: one is
 *  written, and the other its view. */
struct HeaderTensor {
  npu_tensor split = -1, whole = -1;

  HeaderTensor(npu_builder* b, npu_tensor stored, const Form& form, bool is_written_whole) {
    const npu_tensor_desc desc = SplitDesc(b, stored, form);
    npu_tensor_desc header = {};
    header.dtype = desc.dtype;
    for (int i = 0; i < desc.rank; ++header.rank) {
      const auto dim = static_cast<size_t>(header.rank);
      header.dims[header.rank] = desc.dims[i++];
      if (dim >= form.blocked.size() || !form.blocked[dim]) continue;
      header.dims[header.rank].size *= desc.dims[i++].size;
    }
    AddTensor(b, is_written_whole ? &header : &desc, is_written_whole ? &whole : &split);
    if (is_written_whole) {
      AddView(b, whole, &desc, &split);
    } else {
      AddView(b, split, &header, &whole);
    }
  }
};

npu_status Transpose(npu_builder* b, npu_tensor data, npu_tensor out, const Order& permutation) {
  npu_copy copy = {};
  copy.size = sizeof(copy);
  copy.data = data;
  copy.out = out;
  for (int i = 0; i < NPU_MAX_RANK; ++i) {
    copy.permutation[i] = i < static_cast<int>(permutation.size()) ? permutation[i] : i;
    copy.data_step[i] = copy.out_step[i] = 1;
  }
  return emulator->add_copy(b, &copy);
}

npu_tensor ToHeader(npu_builder* b, npu_tensor stored, const Form& form) {
  const HeaderTensor tensor(b, stored, form, false);
  Order places(form.order.size());
  for (size_t i = 0; i < places.size(); ++i) places[form.order[i]] = static_cast<int>(i);
  Transpose(b, stored, tensor.split, places);
  return tensor.whole;
}

npu_status Decline(npu_builder* b, const std::string& reason) {
  BookOf(b).reason = reason;
  return NPU_DECLINED;
}

/*! \brief Checks what the header guarantees about a program whose result has this rank. */
bool IsAligned(npu_builder* b, const npu_vector_program* program, int rank, bool is_blocked) {
  for (int32_t i = 0; i < program->step_count; ++i) {
    for (int32_t k = 0; k < program->steps[i].operand_count; ++k) {
      const npu_operand& operand = program->steps[i].operands[k];
      if (operand.kind != NPU_OPERAND_TENSOR) continue;
      bool is_input = false;
      for (int32_t n = 0; n < program->input_count; ++n) {
        is_input = is_input || program->inputs[n] == operand.index;
      }
      const npu_tensor_desc& desc = BookOf(b).descs[operand.index];
      if (!is_input || desc.rank != rank) return false;
      // One element per channel: in the last dimension, and in that of the blocks.
      const npu_step_kind kind = program->steps[i].kind;
      if (kind != NPU_STEP_BIAS && kind != NPU_STEP_SCALE) continue;
      for (int d = 0; d + 1 < rank; ++d) {
        if (desc.dims[d].size != 1 && !(is_blocked && d == 1)) return false;
      }
    }
  }
  return true;
}

npu_status AddConvolution(npu_builder* b, const npu_convolution* op) {
  const int rank = op->spatial_rank + 2;
  const auto is_blocked = [&](npu_tensor tensor) { return BookOf(b).descs[tensor].rank > rank; };
  const Form data_form = DataForm(is_blocked(op->data), rank);
  const Form out_form = DataForm(is_blocked(op->out), rank);
  const npu_tensor_desc weight = BookOf(b).descs[op->weight];
  // A depthwise weight arrives with the 1 of its second dimension in front, or after the kernel.
  const bool depthwise = weight.rank == rank ? op->groups > 1 && weight.dims[0].size == 1 &&
                                                   weight.dims[rank - 1].size % op->groups == 0
                                             : weight.rank == rank + 1;
  Log(depthwise ? "depthwise" : "convolution");
  if (is_blocked(op->out)) Log("in blocks");
  npu_convolution copy = *op;
  npu_vector_program epilogue;
  std::vector<npu_tensor> inputs;
  if (op->epilogue != nullptr) {
    if (!IsAligned(b, op->epilogue, static_cast<int>(out_form.order.size()), is_blocked(op->out))) {
      return Decline(b, "an epilogue is not aligned");
    }
    epilogue = *op->epilogue;
    for (int32_t i = 0; i < epilogue.input_count; ++i) {
      const npu_tensor input = epilogue.inputs[i];
      inputs.push_back(input < 0 ? input : ToHeader(b, input, out_form));
    }
    epilogue.inputs = inputs.data();
    copy.epilogue = &epilogue;
  }
  copy.data = ToHeader(b, op->data, data_form);
  const auto weight_form = weight.rank == rank ? WeightForm : BlockedWeightForm;
  copy.weight = ToHeader(b, op->weight, weight_form(depthwise, rank));
  const HeaderTensor out(b, op->out, out_form, true);
  copy.out = out.whole;
  const npu_status status = emulator->add_convolution(b, &copy);
  return status == NPU_OK ? Transpose(b, out.split, op->out, out_form.order) : status;
}

npu_status AddPool(npu_builder* b, const npu_pool* op) {
  const int rank = op->spatial_rank + 2;
  const Form form = DataForm(BookOf(b).descs[op->data].rank > rank, rank);
  Log("pool");
  npu_pool copy = *op;
  copy.data = ToHeader(b, op->data, form);
  const HeaderTensor out(b, op->out, form, true);
  copy.out = out.whole;
  const npu_status status = emulator->add_pool(b, &copy);
  return status == NPU_OK ? Transpose(b, out.split, op->out, form.order) : status;
}

npu_status AddCopy(npu_builder* b, const npu_copy* op) {
  bool permutes = false;
  for (int i = 0; i < BookOf(b).descs[op->out].rank; ++i) {
    permutes = permutes || op->permutation[i] != i;
  }
  Log(permutes ? "transpose" : "copy");
  if (permutes && Behaviour() == "declined") return Decline(b, "it cannot transpose");
  return emulator->add_copy(b, op);
}

npu_status AddElementwise(npu_builder* b, const npu_elementwise* op) {
  Log("elementwise");
  return emulator->add_elementwise(b, op);
}
npu_status AddMatmul(npu_builder* b, const npu_matmul* op) {
  Log("matmul");
  return emulator->add_matmul(b, op);
}
npu_status AddReduce(npu_builder* b, const npu_reduce* op) {
  Log("reduce");
  return emulator->add_reduce(b, op);
}

/*! \brief The driver's extension: a relu. */
struct Ops {
  uint32_t size;
  npu_status (*add_relu)(npu_builder* builder, npu_tensor data, npu_tensor out);
};

npu_status AddRelu(npu_builder* b, npu_tensor data, npu_tensor out) {
  const npu_vector_instruction instructions[] = {
      {NPU_VECTOR_LOAD, 0, -1, -1, 0},
      {NPU_VECTOR_CONSTANT, 0, -1, -1, 0},
      {NPU_VECTOR_MAXIMUM, 0, 1, -1, 0},
  };
  const npu_vector_program program = {sizeof(program), 3, instructions, &data, 1, 0, nullptr};
  const npu_elementwise op = {sizeof(op), out, &program};
  Log("relu of the vendor's");
  return emulator->add_elementwise(b, &op);
}

const void* Extension(const char* name) {
  static const Ops ops = {sizeof(Ops), AddRelu};
  return std::strcmp(name, "last.ops") == 0 ? &ops : nullptr;
}

}  // namespace

const npu_build_api* npu_driver_build(uint32_t version) {
  static npu_build_api api;
  emulator = Load<npu_build_api>(EMULATOR_BUILD, "npu_driver_build", version);
  if (emulator == nullptr) return nullptr;
  api = *emulator;
  api.create = Create;
  api.error = Error;
  api.add_input = AddInput;
  api.add_constant = AddConstant;
  api.add_tensor = AddTensor;
  api.add_view = AddView;
  api.add_convolution = AddConvolution;
  api.add_pool = AddPool;
  api.add_copy = AddCopy;
  api.add_elementwise = AddElementwise;
  api.add_matmul = AddMatmul;
  api.add_reduce = AddReduce;
  api.layout = Layout;
  api.extension = Extension;
  return &api;
}

const npu_run_api* npu_driver_run(uint32_t version) {
  return Load<npu_run_api>(EMULATOR, "npu_driver_run", version);
}
