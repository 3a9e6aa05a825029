// The emulator as a driver that declares channels last; a test builds it in the emulator's place.
//
// It declares that order for convolutions, pools and depthwise weights, and computes them with the
// emulator, between its own transposes.
//
//   EMULATOR_DIR     the folder of the emulator's libraries
//   EMULATOR_LOG     a file that gets a line for each builder and each of its operations;
//                    "transpose" for a copy that changes the order of dimensions
//   EMULATOR_LAYOUT  "wrong" declares an invalid order; "declined" declines all transposes
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

npu_status Layout(npu_builder*, npu_layout* layout) {
  const Order order = ChannelsLast(layout->data.rank);
  const bool depthwise = IsDepthwise(layout->groups, layout->weight);
  for (int i = 0; i < layout->data.rank; ++i) {
    layout->order[i] = Behaviour() == "wrong" ? 0 : order[i];
    if (layout->operation == NPU_OPERATION_CONVOLUTION) {
      layout->weight_order[i] = depthwise ? KernelFirst(layout->weight.rank)[i] : order[i];
    }
  }
  return NPU_OK;
}

/*! \brief A tensor of the emulator in the header's order. */
npu_tensor HeaderTensor(npu_builder* b, npu_tensor stored, const Order& order) {
  npu_tensor_desc desc = BookOf(b).descs[stored];
  for (int i = 0; i < desc.rank; ++i) desc.dims[order[i]] = BookOf(b).descs[stored].dims[i];
  npu_tensor tensor = -1;
  AddTensor(b, &desc, &tensor);
  return tensor;
}

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

npu_tensor ToHeader(npu_builder* b, npu_tensor stored, const Order& order) {
  const npu_tensor tensor = HeaderTensor(b, stored, order);
  Order places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[order[i]] = static_cast<int>(i);
  Transpose(b, stored, tensor, places);
  return tensor;
}

npu_status Decline(npu_builder* b, const std::string& reason) {
  BookOf(b).reason = reason;
  return NPU_DECLINED;
}

/*! \brief Checks what the header guarantees about a program whose result has this rank. */
bool IsAligned(npu_builder* b, const npu_vector_program* program, int rank) {
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
      // One element per channel: in the last dimension.
      const npu_step_kind kind = program->steps[i].kind;
      if (kind != NPU_STEP_BIAS && kind != NPU_STEP_SCALE) continue;
      for (int d = 0; d + 1 < rank; ++d) {
        if (desc.dims[d].size != 1) return false;
      }
    }
  }
  return true;
}

npu_status AddConvolution(npu_builder* b, const npu_convolution* op) {
  const int rank = op->spatial_rank + 2;
  const Order order = ChannelsLast(rank);
  const npu_tensor_desc weight = BookOf(b).descs[op->weight];
  // A depthwise weight arrives with the 1 of its second dimension in front.
  const bool depthwise =
      op->groups > 1 && weight.dims[0].size == 1 && weight.dims[rank - 1].size % op->groups == 0;
  Log(depthwise ? "depthwise" : "convolution");
  npu_convolution copy = *op;
  npu_vector_program epilogue;
  std::vector<npu_tensor> inputs;
  if (op->epilogue != nullptr) {
    if (!IsAligned(b, op->epilogue, rank)) return Decline(b, "an epilogue is not aligned");
    epilogue = *op->epilogue;
    for (int32_t i = 0; i < epilogue.input_count; ++i) {
      const npu_tensor input = epilogue.inputs[i];
      inputs.push_back(input < 0 ? input : ToHeader(b, input, order));
    }
    epilogue.inputs = inputs.data();
    copy.epilogue = &epilogue;
  }
  copy.data = ToHeader(b, op->data, order);
  copy.weight = ToHeader(b, op->weight, depthwise ? KernelFirst(rank) : order);
  copy.out = HeaderTensor(b, op->out, order);
  const npu_status status = emulator->add_convolution(b, &copy);
  return status == NPU_OK ? Transpose(b, copy.out, op->out, order) : status;
}

npu_status AddPool(npu_builder* b, const npu_pool* op) {
  const Order order = ChannelsLast(op->spatial_rank + 2);
  Log("pool");
  npu_pool copy = *op;
  copy.data = ToHeader(b, op->data, order);
  copy.out = HeaderTensor(b, op->out, order);
  const npu_status status = emulator->add_pool(b, &copy);
  return status == NPU_OK ? Transpose(b, copy.out, op->out, order) : status;
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
