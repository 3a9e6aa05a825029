/* A complete driver in one file of C, as a vendor wrote it against version 3 of npu_driver.h (the
 * copy beside it). It is never changed: it must compile and work with every later engine.
 *
 * It computes chains of element-wise ops on float32 by reading steps, and the maximum of windows of
 * two dimensions, with channels in blocks of 2 where it can, else channels last. One op, a sigmoid
 * that is a node of its own, comes by an extension. It tells what it did, and when. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "npu_driver.h"

enum { TENSORS = 64, NODES = 32, STEPS = 32, MAGIC = 0x31465250 };

typedef struct tensor {
  int32_t kind; /* 0: input, 1: constant, 2: computed */
  int32_t rank;
  int64_t dims[NPU_MAX_RANK];
  int64_t offset; /* of a constant's data behind the program */
} tensor;

typedef struct node {
  int32_t out, step_count; /* of a pool: no steps */
  npu_step steps[STEPS];
  npu_pool pool;
} node;

/* The bytes: this, followed by the data of the constants. */
typedef struct image {
  uint32_t magic;
  int32_t tensor_count, node_count, input_count, output_count;
  int64_t data_size;
  int32_t inputs[TENSORS], outputs[TENSORS];
  tensor tensors[TENSORS];
  node nodes[NODES];
} image;

struct npu_builder {
  image image;
  unsigned char* bytes;
  char reason[160];
};

static int64_t count_of(const tensor* t) {
  int64_t count = 1;
  for (int32_t i = 0; i < t->rank; ++i) count *= t->dims[i];
  return count;
}

static npu_status decline(npu_builder* builder, const char* reason) {
  snprintf(builder->reason, sizeof(builder->reason), "%s", reason);
  return NPU_DECLINED;
}

static npu_status create(const npu_option* options, size_t option_count, npu_builder** builder) {
  (void)options;
  if (option_count != 1) return NPU_INVALID;
  *builder = calloc(1, sizeof(npu_builder));
  if (*builder == NULL) return NPU_OUT_OF_MEMORY;
  (*builder)->image.magic = MAGIC;
  return NPU_OK;
}

static void destroy(npu_builder* builder) {
  if (builder == NULL) return;
  free(builder->bytes);
  free(builder);
}

static const char* build_error(const npu_builder* builder) {
  return builder == NULL ? "the options are wrong" : builder->reason;
}

static npu_status add(npu_builder* builder, const npu_tensor_desc* desc, int32_t kind,
                      npu_tensor* id) {
  image* image = &builder->image;
  if (desc->dtype != NPU_FLOAT32) return decline(builder, "only float32 is computed");
  if (image->tensor_count == TENSORS) return decline(builder, "there are too many tensors");
  tensor* t = &image->tensors[image->tensor_count];
  t->kind = kind;
  t->rank = desc->rank;
  for (int32_t i = 0; i < desc->rank; ++i) {
    if (desc->dims[i].symbol >= 0) return decline(builder, "sizes must be fixed");
    t->dims[i] = desc->dims[i].size;
  }
  *id = image->tensor_count++;
  return NPU_OK;
}

static npu_status add_input(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* id) {
  npu_status status = add(builder, desc, 0, id);
  if (status == NPU_OK) builder->image.inputs[builder->image.input_count++] = *id;
  return status;
}

static npu_status add_constant(npu_builder* builder, const npu_tensor_desc* desc, const void* data,
                               size_t bytes, npu_tensor* id) {
  npu_status status = add(builder, desc, 1, id);
  if (status != NPU_OK) return status;
  int64_t offset = builder->image.data_size;
  unsigned char* grown = realloc(builder->bytes, (size_t)offset + bytes);
  if (grown == NULL) return NPU_OUT_OF_MEMORY;
  memcpy(grown + offset, data, bytes);
  builder->bytes = grown;
  builder->image.tensors[*id].offset = offset;
  builder->image.data_size = offset + (int64_t)bytes;
  return NPU_OK;
}

static npu_status add_tensor(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* id) {
  return add(builder, desc, 2, id);
}

static int is_known(npu_step_kind kind) {
  switch (kind) {
    case NPU_STEP_ADD:
    case NPU_STEP_SUBTRACT:
    case NPU_STEP_MULTIPLY:
    case NPU_STEP_DIVIDE:
    case NPU_STEP_MAXIMUM:
    case NPU_STEP_MINIMUM:
    case NPU_STEP_EXP:
    case NPU_STEP_TANH:
    case NPU_STEP_SIGMOID:
    case NPU_STEP_ABSOLUTE:
    case NPU_STEP_SQRT:
    case NPU_STEP_RELU:
    case NPU_STEP_CLIP:
    case NPU_STEP_LEAKY_RELU:
    case NPU_STEP_SILU:
    case NPU_STEP_SQUARE:
    case NPU_STEP_NEGATE:
    case NPU_STEP_CAST:
      return 1;
    default:
      return 0;
  }
}

static npu_status add_steps(npu_builder* builder, npu_tensor out, const npu_step* steps,
                            int32_t count) {
  image* image = &builder->image;
  if (image->node_count == NODES || count > STEPS) return decline(builder, "it is too long");
  node* n = &image->nodes[image->node_count++];
  n->out = out;
  n->step_count = count;
  for (int32_t i = 0; i < count; ++i) {
    if (!is_known(steps[i].kind)) {
      snprintf(builder->reason, sizeof(builder->reason), "it has no step of kind %d (%s)",
               (int)steps[i].kind, steps[i].op);
      return NPU_DECLINED;
    }
    n->steps[i] = steps[i];
    n->steps[i].op = NULL;
  }
  return NPU_OK;
}

static npu_status add_elementwise(npu_builder* builder, const npu_elementwise* op) {
  return add_steps(builder, op->out, op->program->steps, op->program->step_count);
}

static npu_status add_pool(npu_builder* builder, const npu_pool* op) {
  image* image = &builder->image;
  if (op->kind != NPU_POOL_MAX) return decline(builder, "a pool keeps the maximum");
  if (op->spatial_rank != 2) return decline(builder, "a pool has two spatial dimensions");
  if (image->node_count == NODES) return decline(builder, "it is too long");
  node* n = &image->nodes[image->node_count++];
  n->out = op->out;
  n->step_count = 0;
  n->pool = *op;
  return NPU_OK;
}

static npu_status layout(npu_builder* builder, npu_layout* wanted) {
  static const int32_t channels_last[] = {0, 2, 3, 1}, blocks_last[] = {0, 1, 3, 4, 2};
  (void)builder;
  if (wanted->operation != NPU_OPERATION_POOL || wanted->data.rank != 4) return NPU_OK;
  memcpy(wanted->order, channels_last, sizeof(channels_last));
  if (wanted->size >= sizeof(*wanted) && wanted->data.dims[1].size % 2 == 0) {
    memcpy(wanted->order, blocks_last, sizeof(blocks_last));
    wanted->data_block = 2;
  }
  return NPU_OK;
}

static npu_status mark_output(npu_builder* builder, npu_tensor id) {
  builder->image.outputs[builder->image.output_count++] = id;
  return NPU_OK;
}

static npu_status finish(npu_builder* builder, const uint8_t** bytes, size_t* size) {
  if (bytes == NULL) return NPU_OK;
  size_t data = (size_t)builder->image.data_size;
  unsigned char* whole = malloc(sizeof(image) + data);
  if (whole == NULL) return NPU_OUT_OF_MEMORY;
  memcpy(whole, &builder->image, sizeof(image));
  if (data > 0) memcpy(whole + sizeof(image), builder->bytes, data);
  free(builder->bytes);
  builder->bytes = whole;
  *bytes = whole;
  *size = sizeof(image) + data;
  return NPU_OK;
}

/* ---- An operation of this driver alone ---- */

typedef struct frozen_ops {
  uint32_t size;
  npu_status (*add_sigmoid)(npu_builder* builder, npu_tensor data, npu_tensor out);
} frozen_ops;

static npu_status add_sigmoid(npu_builder* builder, npu_tensor data, npu_tensor out) {
  if (builder->image.tensors[data].rank > 3) return decline(builder, "a sigmoid has rank 3 at most");
  npu_step step = {0};
  step.kind = NPU_STEP_SIGMOID;
  step.operand_count = 1;
  step.operands[0].kind = NPU_OPERAND_TENSOR;
  step.operands[0].index = data;
  /* Twice as a mark by which a test knows that it came this way. */
  npu_step again = {0};
  again.kind = NPU_STEP_CAST;
  again.operand_count = 1;
  again.operands[0].kind = NPU_OPERAND_STEP;
  npu_step steps[] = {step, again};
  return add_steps(builder, out, steps, 2);
}

static const frozen_ops ops = {sizeof(frozen_ops), add_sigmoid};

static const void* extension(const char* name) {
  return strcmp(name, "frozen.ops") == 0 ? &ops : NULL;
}

/* ---- Run ---- */

struct npu_program {
  const image* image;
  const unsigned char* data;
};

struct npu_request {
  const npu_program* program;
  float* buffers[TENSORS];
  float* owned[TENSORS];
  void* outputs[TENSORS];
  uint64_t steps;
  npu_event events[NODES];
};

static const char* reason = "";

static npu_status invalid(const char* why) {
  reason = why;
  return NPU_INVALID;
}

static const char* run_error(void) { return reason; }

static npu_status load(npu_device* device, const uint8_t* bytes, size_t size,
                       npu_program** program) {
  (void)device;
  const image* i = (const image*)bytes;
  if (size < sizeof(image) || i->magic != MAGIC || size != sizeof(image) + (size_t)i->data_size) {
    return invalid("the program is corrupt");
  }
  *program = calloc(1, sizeof(npu_program));
  if (*program == NULL) return NPU_OUT_OF_MEMORY;
  (*program)->image = i;
  (*program)->data = bytes + sizeof(image);
  return NPU_OK;
}

static void unload(npu_program* program) { free(program); }

static npu_status create_request(npu_program* program, npu_request** request) {
  npu_request* r = calloc(1, sizeof(npu_request));
  if (r == NULL) return NPU_OUT_OF_MEMORY;
  r->program = program;
  for (int32_t i = 0; i < program->image->tensor_count; ++i) {
    const tensor* t = &program->image->tensors[i];
    if (t->kind == 1) r->buffers[i] = (float*)(program->data + t->offset);
    if (t->kind == 2) r->buffers[i] = r->owned[i] = malloc((size_t)count_of(t) * sizeof(float) + 1);
  }
  *request = r;
  return NPU_OK;
}

static void destroy_request(npu_request* request) {
  if (request == NULL) return;
  for (int32_t i = 0; i < TENSORS; ++i) free(request->owned[i]);
  free(request);
}

static npu_status check(const npu_buffer* buffer, const tensor* t) {
  if (buffer->dtype != NPU_FLOAT32) return invalid("a buffer is not float32");
  if (buffer->rank != t->rank || buffer->bytes != (size_t)count_of(t) * sizeof(float)) {
    return invalid("a buffer has the wrong size");
  }
  return NPU_OK;
}

static npu_status bind_input(npu_request* request, size_t index, const npu_buffer* buffer) {
  const image* image = request->program->image;
  if (index >= (size_t)image->input_count) return invalid("there is no such input");
  request->buffers[image->inputs[index]] = buffer->data;
  return check(buffer, &image->tensors[image->inputs[index]]);
}

static npu_status bind_output(npu_request* request, size_t index, const npu_buffer* buffer) {
  const image* image = request->program->image;
  if (index >= (size_t)image->output_count) return invalid("there is no such output");
  request->outputs[index] = buffer->data;
  return check(buffer, &image->tensors[image->outputs[index]]);
}

/* The element of `t` that is broadcast to place `at` of `out`. */
static int64_t place(const tensor* t, const tensor* out, int64_t at) {
  int64_t index = 0, stride = 1;
  for (int32_t i = out->rank - 1; i >= 0; --i) {
    int64_t position = at % out->dims[i];
    at /= out->dims[i];
    int32_t own = i - (out->rank - t->rank);
    if (own < 0) continue;
    index += t->dims[own] == 1 ? 0 : position * stride;
    stride *= t->dims[own];
  }
  return index;
}

static double compute(npu_step_kind kind, double a, double b, double c) {
  switch (kind) {
    case NPU_STEP_ADD:
      return a + b;
    case NPU_STEP_SUBTRACT:
      return a - b;
    case NPU_STEP_MULTIPLY:
      return a * b;
    case NPU_STEP_DIVIDE:
      return a / b;
    case NPU_STEP_MAXIMUM:
      return a > b ? a : b;
    case NPU_STEP_MINIMUM:
      return a < b ? a : b;
    case NPU_STEP_EXP:
      return exp(a);
    case NPU_STEP_TANH:
      return tanh(a);
    case NPU_STEP_SIGMOID:
      return 1 / (1 + exp(-a));
    case NPU_STEP_ABSOLUTE:
      return fabs(a);
    case NPU_STEP_SQRT:
      return sqrt(a);
    case NPU_STEP_RELU:
      return a > 0 ? a : 0;
    case NPU_STEP_CLIP:
      return a < b ? b : a > c ? c : a;
    case NPU_STEP_LEAKY_RELU:
      return a > 0 ? a : a * b;
    case NPU_STEP_SILU:
      return a / (1 + exp(-a));
    case NPU_STEP_SQUARE:
      return a * a;
    case NPU_STEP_NEGATE:
      return -a;
    default:
      return a;
  }
}

/* [N, H, W, C], or [N, blocks, H, W, block]: images of each block follow each other. */
static void run_pool(const npu_request* request, const npu_pool* pool) {
  const tensor* data = &request->program->image->tensors[pool->data];
  const tensor* out = &request->program->image->tensors[pool->out];
  const float* from = request->buffers[pool->data];
  float* to = request->buffers[pool->out];
  const int32_t first = out->rank - 3; /* the height */
  const int64_t height = data->dims[first], width = data->dims[first + 1];
  const int64_t channels = out->dims[first + 2];
  for (int64_t at = 0; at < count_of(out); ++at) {
    int64_t c = at % channels, x = at / channels % out->dims[first + 1];
    int64_t y = at / channels / out->dims[first + 1] % out->dims[first];
    int64_t n = at / channels / out->dims[first + 1] / out->dims[first];
    float most = -INFINITY;
    for (int64_t i = 0; i < pool->window[0]; ++i) {
      for (int64_t j = 0; j < pool->window[1]; ++j) {
        int64_t row = y * pool->strides[0] + i * pool->dilations[0] - pool->pads_begin[0];
        int64_t column = x * pool->strides[1] + j * pool->dilations[1] - pool->pads_begin[1];
        if (row < 0 || row >= height || column < 0 || column >= width) continue;
        float value = from[((n * height + row) * width + column) * channels + c];
        if (!(value <= most)) most = value;
      }
    }
    to[at] = most;
  }
}

static npu_status execute(npu_request* request) {
  const image* image = request->program->image;
  int64_t now = 0;
  for (int32_t n = 0; n < image->node_count; ++n) {
    const node* node = &image->nodes[n];
    const tensor* out = &image->tensors[node->out];
    npu_event event = {0};
    event.name = node->step_count == 0 ? "pool" : "steps";
    event.engine = "vector";
    event.begin = now;
    event.end = now += count_of(out);
    event.busy = event.end - event.begin;
    event.operations = (uint64_t)(event.busy * node->step_count);
    request->events[n] = event;
    if (node->step_count == 0) {
      run_pool(request, &node->pool);
      continue;
    }
    for (int64_t at = 0; at < count_of(out); ++at) {
      double values[STEPS] = {0};
      for (int32_t s = 0; s < node->step_count; ++s) {
        double x[NPU_MAX_OPERANDS] = {0};
        for (int32_t k = 0; k < node->steps[s].operand_count; ++k) {
          const npu_operand* operand = &node->steps[s].operands[k];
          if (operand->kind == NPU_OPERAND_NUMBER) x[k] = operand->number;
          if (operand->kind == NPU_OPERAND_STEP) x[k] = values[operand->index];
          if (operand->kind != NPU_OPERAND_TENSOR) continue;
          const tensor* from = &image->tensors[operand->index];
          x[k] = request->buffers[operand->index][place(from, out, at)];
        }
        values[s] = compute(node->steps[s].kind, x[0], x[1], x[2]);
      }
      request->buffers[node->out][at] = (float)values[node->step_count - 1];
    }
    request->steps += (uint64_t)node->step_count;
  }
  for (int32_t i = 0; i < image->output_count; ++i) {
    const tensor* t = &image->tensors[image->outputs[i]];
    memcpy(request->outputs[i], request->buffers[image->outputs[i]],
           (size_t)count_of(t) * sizeof(float));
  }
  return NPU_OK;
}

static npu_status read_counters(const npu_request* request, uint64_t* values) {
  values[0] = request->steps;
  return NPU_OK;
}

static npu_status read_events(npu_request* request, const npu_event** events, size_t* count,
                              double* units_per_microsecond) {
  *events = request->events;
  *count = (size_t)request->program->image->node_count;
  *units_per_microsecond = 100;
  return NPU_OK;
}

static const char* const speeds[] = {"slow", "fast"};
static const npu_option_info options[] = {
    {"speed", NPU_OPTION_CHOICE, "fast", 0, 0, speeds, 2, "how fast it would be"},
};
static const npu_counter_info counters[] = {
    {"steps", "", NPU_COUNTER_SUM, "steps that were computed"},
};

const npu_build_api* npu_driver_build(uint32_t engine_version) {
  static npu_build_api api;
  (void)engine_version;
  api.size = sizeof(api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = "frozen";
  api.release = "1.0";
  api.options = options;
  api.option_count = 1;
  api.create = create;
  api.destroy = destroy;
  api.error = build_error;
  api.add_input = add_input;
  api.add_constant = add_constant;
  api.add_tensor = add_tensor;
  api.add_elementwise = add_elementwise;
  api.mark_output = mark_output;
  api.finish = finish;
  api.extension = extension;
  api.add_pool = add_pool;
  api.layout = layout;
  return &api;
}

const npu_run_api* npu_driver_run(uint32_t engine_version) {
  static npu_run_api api;
  (void)engine_version;
  api.size = sizeof(api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = "frozen";
  api.counters = counters;
  api.counter_count = 1;
  api.error = run_error;
  api.load = load;
  api.unload = unload;
  api.create_request = create_request;
  api.destroy_request = destroy_request;
  api.bind_input = bind_input;
  api.bind_output = bind_output;
  api.execute = execute;
  api.read_counters = read_counters;
  api.read_events = read_events;
  api.event_unit = "elements";
  return &api;
}
