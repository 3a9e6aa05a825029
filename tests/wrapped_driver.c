/* The emulator with functions left out or logged; a test builds it in the emulator's place.
 *
 *   EMULATOR_DIR         the folder of the emulator's own libraries
 *   EMULATOR_WITHOUT    functions of the run half, or integer_weights, that are left out, joined by
 *                      ","
 *   EMULATOR_LOG        a file that gets a line for each operation: its name, and the steps of its
 *                      program as kind(operands), e.g. "matmul 2(a,t)"
 *   EMULATOR_DECLINES  "behind": an element-wise operation that reads what a matmul wrote
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "npu_driver.h"

static const npu_build_api* emulator;

static void* entry(const char* library, const char* name) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", getenv("EMULATOR_DIR"), library);
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return handle == NULL ? NULL : dlsym(handle, name);
}

static void log_steps(const char* operation, const npu_vector_program* program) {
  FILE* log = fopen(getenv("EMULATOR_LOG"), "a");
  fputs(operation, log);
  for (int32_t i = 0; program != NULL && i < program->step_count; ++i) {
    const npu_step* step = &program->steps[i];
    fprintf(log, " %s%d(", *step->op == '\0' ? "unnamed " : "", (int)step->kind);
    for (int32_t k = 0; k < step->operand_count; ++k) {
      const npu_operand* operand = &step->operands[k];
      fprintf(log, "%s%c", k > 0 ? "," : "", "atsn"[operand->kind]);
      if (operand->kind == NPU_OPERAND_STEP) fprintf(log, "%d", (int)operand->index);
      if (operand->kind == NPU_OPERAND_NUMBER) fprintf(log, "%g", operand->number);
    }
    fputc(')', log);
  }
  fputc('\n', log);
  fclose(log);
}

/* The result of the builder's last matmul, and whether this driver declined the last call. */
static npu_builder* multiplier;
static npu_tensor product;
static int declined;

static npu_status create(const npu_option* options, size_t count, npu_builder** builder) {
  multiplier = NULL;
  declined = 0;
  return emulator->create(options, count, builder);
}

static const char* error(const npu_builder* builder) {
  return declined ? "nothing may stand behind a matmul" : emulator->error(builder);
}

static npu_status add_matmul(npu_builder* builder, const npu_matmul* op) {
  char what[64];
  snprintf(what, sizeof(what), op->b_bits != 0 ? "matmul of %d bits" : "matmul", (int)op->b_bits);
  log_steps(what, op->epilogue);
  multiplier = builder;
  product = op->out;
  return emulator->add_matmul(builder, op);
}

static npu_status add_convolution(npu_builder* builder, const npu_convolution* op) {
  log_steps("convolution", op->epilogue);
  return emulator->add_convolution(builder, op);
}

static npu_status add_elementwise(npu_builder* builder, const npu_elementwise* op) {
  log_steps("elementwise", op->program);
  for (int32_t i = 0; getenv("EMULATOR_DECLINES") != NULL && i < op->program->input_count; ++i) {
    declined = multiplier == builder && op->program->inputs[i] == product;
    if (declined) return NPU_DECLINED;
  }
  return emulator->add_elementwise(builder, op);
}

/* This driver's extension: a relu, which the emulator computes as such. */
typedef struct wrapped_ops {
  uint32_t size;
  npu_status (*add_relu)(npu_builder* builder, npu_tensor data, npu_tensor out);
} wrapped_ops;

static npu_status add_relu(npu_builder* builder, npu_tensor data, npu_tensor out) {
  const npu_vector_instruction instructions[] = {
      {NPU_VECTOR_LOAD, 0, -1, -1, 0},
      {NPU_VECTOR_CONSTANT, 0, -1, -1, 0},
      {NPU_VECTOR_MAXIMUM, 0, 1, -1, 0},
  };
  const npu_vector_program program = {sizeof(program), 3, instructions, &data, 1, 0, NULL};
  const npu_elementwise op = {sizeof(op), out, &program};
  log_steps("relu of the vendor's", NULL);
  return emulator->add_elementwise(builder, &op);
}

static const wrapped_ops ops = {sizeof(wrapped_ops), add_relu};

static const void* extension(const char* name) {
  return strcmp(name, "wrapped.ops") == 0 ? &ops : NULL;
}

const npu_build_api* npu_driver_build(uint32_t engine_version) {
  static npu_build_api api;
  const npu_build_api* (*function)(uint32_t) = NULL;
  *(void**)&function = entry(EMULATOR_BUILD, "npu_driver_build");
  if (function == NULL) return NULL;
  emulator = function(engine_version);
  api = *emulator;
  api.create = create;
  api.error = error;
  api.add_matmul = add_matmul;
  api.add_convolution = add_convolution;
  api.add_elementwise = add_elementwise;
  api.extension = extension;
  const char* without = getenv("EMULATOR_WITHOUT");
  if (without != NULL && strstr(without, "integer_weights") != NULL) api.integer_weights = 0;
  return &api;
}

const npu_run_api* npu_driver_run(uint32_t engine_version) {
  static npu_run_api api;
  const npu_run_api* (*function)(uint32_t) = NULL;
  *(void**)&function = entry(EMULATOR, "npu_driver_run");
  if (function == NULL) return NULL;
  api = *function(engine_version);
  const char* without = getenv("EMULATOR_WITHOUT");
  if (without == NULL) return &api;
  if (strstr(without, "execute") != NULL) api.execute = NULL;
  if (strstr(without, "submit") != NULL) api.submit = NULL;
  if (strstr(without, "wait") != NULL) api.wait = NULL;
  if (strstr(without, "cancel") != NULL) api.cancel = NULL;
  if (strstr(without, "read_counters") != NULL) api.read_counters = NULL;
  if (strstr(without, "describe") != NULL) api.describe = NULL;
  return &api;
}
