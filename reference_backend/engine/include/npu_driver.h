// SPDX-License-Identifier: Apache-2.0
/*!
 * \file npu_driver.h
 * \brief The C API between TVM and the hardware of an NPU.
 *
 * Two tables of functions, because SDKs come in two kinds:
 *
 * - *build* (a workstation): create a builder, add tensors and operations, finish to bytes. An SDK
 *   that builds graphs calls its own builder here; one that emits a command stream emits commands.
 * - *run* (a workstation or a board): open a device, load the bytes, bind buffers, submit, wait.
 *
 * The bytes are opaque to every other layer. Nothing here knows of TVM. All functions are safe to
 * call from several threads as long as no two calls share a builder or a request (but `cancel`).
 */
#ifndef NPU_DRIVER_H_
#define NPU_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Version of both tables; raised whenever a struct or a function below changes. */
#define NPU_DRIVER_API_VERSION 3
/*! \brief The most dimensions that a tensor may have. */
#define NPU_MAX_RANK 8
/*! \brief The most spatial dimensions of a convolution or a pool. */
#define NPU_MAX_SPATIAL 3
/*! \brief The most tensors that one vector program may read. */
#define NPU_MAX_VECTOR_INPUTS 16

/*! \brief What a call came to. */
typedef enum npu_status {
  NPU_OK = 0,
  /*! \brief The hardware cannot do this operation: the caller may leave it to the host. */
  NPU_DECLINED = 1,
  /*! \brief The caller broke the contract of this header. */
  NPU_INVALID = 2,
  /*! \brief Not enough memory, on the host or on the device. */
  NPU_OUT_OF_MEMORY = 3,
  /*! \brief The device failed while it ran. */
  NPU_DEVICE_ERROR = 4,
  /*! \brief The time was up before the work was done; the work goes on. */
  NPU_TIMEOUT = 5,
  /*! \brief The work was cancelled before it was done. */
  NPU_CANCELLED = 6,
} npu_status;

/*! \brief Element types. */
typedef enum npu_dtype {
  NPU_FLOAT32 = 0,
  NPU_FLOAT16 = 1,
  NPU_INT8 = 2,
  NPU_UINT8 = 3,
  NPU_INT32 = 4,
  NPU_INT64 = 5,
  NPU_BOOL = 6,
} npu_dtype;

/*! \brief One dimension: `size`, or `size` times the value of a symbol that is known at the call.
 */
typedef struct npu_dim {
  /*! \brief The size, or the factor of the symbol. */
  int64_t size;
  /*! \brief Index of the symbol, or -1 where the size is fixed. */
  int32_t symbol;
} npu_dim;

/*! \brief Shape and type of a dense, row-major tensor. Rank 0 is a scalar. */
typedef struct npu_tensor_desc {
  npu_dtype dtype;
  int32_t rank;
  npu_dim dims[NPU_MAX_RANK];
} npu_tensor_desc;

/*! \brief A setting, by name. An unknown key or an impossible value is NPU_INVALID. */
typedef struct npu_option {
  const char* key;
  const char* value;
} npu_option;

/*! \brief A tensor of one builder. */
typedef int32_t npu_tensor;

/* ---- Vector programs -------------------------------------------------------------------------
 * The vector engine computes one value per output element with a short program in single
 * assignment form: instruction i defines value i, its operands name earlier instructions, and the
 * last value is stored.
 *
 * Arithmetic is in int64 where the output and everything that is loaded (also the accumulator) are
 * integers or bools: sums and products keep the low 64 bits, the store keeps the low bits of the
 * output's type. Elsewhere it is in float32: loads convert to it, the store converts to the
 * output's type (to nearest even, saturating, for integers; NaN becomes 0). A bool is loaded as 0
 * or 1, and stored as whether the value is not 0.
 */

/*! \brief Operations of the vector engine. `a`, `b`, `c` are operands. */
typedef enum npu_vector_opcode {
  /*! \brief Element of input number `a`, broadcast to the output's shape as NumPy does. In the
   *  epilogue of a matmul, convolution or reduction, input 0 is the accumulator. */
  NPU_VECTOR_LOAD = 0,
  /*! \brief The number `immediate`. In int64: rounded to the nearest integer, which must be one of
   *  64 bits. */
  NPU_VECTOR_CONSTANT,
  NPU_VECTOR_ADD,
  NPU_VECTOR_SUBTRACT,
  NPU_VECTOR_MULTIPLY,
  /*! \brief a / b. In int64: rounded towards zero, and 0 where b is 0. */
  NPU_VECTOR_DIVIDE,
  /*! \brief The larger operand; NaN if either is NaN. */
  NPU_VECTOR_MAXIMUM,
  /*! \brief The smaller operand; NaN if either is NaN. */
  NPU_VECTOR_MINIMUM,
  /*! \brief The quotient, rounded to the next lower integer. In int64: 0 where b is 0. */
  NPU_VECTOR_FLOOR_DIVIDE,
  /*! \brief a - b * trunc(a / b): the sign is a's. In int64: 0 where b is 0. */
  NPU_VECTOR_REMAINDER,
  /*! \brief 1 where a < b, else 0. */
  NPU_VECTOR_LESS,
  /*! \brief 1 where a == b, else 0. */
  NPU_VECTOR_EQUAL,
  /*! \brief b where a is not 0, else c. */
  NPU_VECTOR_SELECT,
  NPU_VECTOR_ABSOLUTE,
  /* Those that follow are for float32 only. */
  NPU_VECTOR_POWER,
  NPU_VECTOR_EXP,
  NPU_VECTOR_LOG,
  NPU_VECTOR_SQRT,
  NPU_VECTOR_TANH,
  NPU_VECTOR_ERF,
  /*! \brief 1 / (1 + exp(-a)). */
  NPU_VECTOR_SIGMOID,
  NPU_VECTOR_SIN,
  NPU_VECTOR_COS,
  NPU_VECTOR_TAN,
  NPU_VECTOR_ATAN,
  NPU_VECTOR_FLOOR,
  NPU_VECTOR_TRUNCATE,
  /*! \brief To the nearest integer, halves to even. */
  NPU_VECTOR_ROUND_EVEN,
  /*! \brief To the nearest integer, halves away from zero. */
  NPU_VECTOR_ROUND_AWAY,
  NPU_VECTOR_OPCODE_COUNT,
} npu_vector_opcode;

/*! \brief One instruction of a vector program. */
typedef struct npu_vector_instruction {
  npu_vector_opcode opcode;
  int32_t a, b, c;
  double immediate;
} npu_vector_instruction;

/*! \brief A program and the tensors that it reads. */
typedef struct npu_vector_program {
  const npu_vector_instruction* instructions;
  int32_t instruction_count;
  /*! \brief What NPU_VECTOR_LOAD reads. In an epilogue, entry 0 is ignored (the accumulator), and
   *  there may be none. */
  const npu_tensor* inputs;
  int32_t input_count;
} npu_vector_program;

/* ---- Operations ------------------------------------------------------------------------------
 * `epilogue` is applied to each result before it is stored; NULL stores it as it is.
 */

/*! \brief out[..., m, n] = sum over k of a[..., m, k] * b[..., k, n]; leading dims broadcast. Both
 *  operands have at least 2 dimensions. */
typedef struct npu_matmul {
  npu_tensor a, b, out;
  /*! \brief Not 0: the operand is stored with its last two dimensions swapped. */
  int32_t transpose_a, transpose_b;
  const npu_vector_program* epilogue;
} npu_matmul;

/*! \brief Cross-correlation of data [N, C, spatial...] with weight [O, C / groups, spatial...]. */
typedef struct npu_convolution {
  npu_tensor data, weight, out;
  int32_t spatial_rank;
  int64_t strides[NPU_MAX_SPATIAL];
  int64_t dilations[NPU_MAX_SPATIAL];
  int64_t pads_begin[NPU_MAX_SPATIAL];
  int64_t pads_end[NPU_MAX_SPATIAL];
  int64_t groups;
  const npu_vector_program* epilogue;
} npu_convolution;

/*! \brief What a pool keeps of a window. */
typedef enum npu_pool_kind {
  NPU_POOL_MAX = 0,
  /*! \brief The mean of the elements inside the data. */
  NPU_POOL_AVERAGE = 1,
  /*! \brief The mean with padding counted as zeros (not what ceil mode adds beyond it). */
  NPU_POOL_AVERAGE_INCLUDE_PAD = 2,
  /*! \brief Window i covers [floor(i * in / out), ceil((i + 1) * in / out)); only the data's and
   *  the output's shape count. */
  NPU_POOL_AVERAGE_ADAPTIVE = 3,
} npu_pool_kind;

/*! \brief Pooling of data [N, C, spatial...]; windows may reach beyond pads_end (ceil mode). */
typedef struct npu_pool {
  npu_tensor data, out;
  npu_pool_kind kind;
  int32_t spatial_rank;
  int64_t window[NPU_MAX_SPATIAL];
  int64_t strides[NPU_MAX_SPATIAL];
  int64_t dilations[NPU_MAX_SPATIAL];
  int64_t pads_begin[NPU_MAX_SPATIAL];
  int64_t pads_end[NPU_MAX_SPATIAL];
} npu_pool;

/*! \brief One value per element of `out`. */
typedef struct npu_elementwise {
  npu_vector_program program;
  npu_tensor out;
} npu_elementwise;

/*! \brief How a reduction combines elements. */
typedef enum npu_reduce_kind {
  NPU_REDUCE_SUM = 0,
  NPU_REDUCE_MEAN = 1,
  NPU_REDUCE_MAX = 2,
  NPU_REDUCE_MIN = 3,
  NPU_REDUCE_PRODUCT = 4,
} npu_reduce_kind;

/*! \brief Reduction of `data` over the axes whose bit is set in `axes`. `out` has the kept
 *  dimensions, with or without the reduced ones as 1. Inputs of the epilogue broadcast against
 *  `out`. Integers are summed in int64 (no mean), real numbers in float32. */
typedef struct npu_reduce {
  npu_tensor data, out;
  npu_reduce_kind kind;
  uint32_t axes;
  const npu_vector_program* epilogue;
} npu_reduce;

/*! \brief Copies a box of elements, with steps, and with its dimensions in another order.
 *
 * out[out_offset + i * out_step] = data[data_offset + j * data_step], where dimension d of `out`
 * runs with dimension permutation[d] of `data`: j[permutation[d]] = i[d]. The box is as large as
 * fits into both from their offsets on. With `fill` not 0 the rest of `out` is set to `fill_value`;
 * otherwise it is left for other copies to write. Boxes of several copies do not overlap, only the
 * first copy fills, one with an out_step other than 1 must fill and be the only one, and `out` is
 * complete before it is read.
 */
typedef struct npu_copy {
  npu_tensor data, out;
  int32_t permutation[NPU_MAX_RANK];
  /*! \brief Where the box starts, and how far apart its elements are, by dimension of `data`. A
   * step is not 0; a negative one goes backwards from the offset. */
  int64_t data_offset[NPU_MAX_RANK];
  int64_t data_step[NPU_MAX_RANK];
  /*! \brief The same by dimension of `out`; steps are positive. A dimension whose box is not all of
   *  both, in their order, must have a fixed size. */
  int64_t out_offset[NPU_MAX_RANK];
  int64_t out_step[NPU_MAX_RANK];
  int32_t fill;
  double fill_value;
} npu_copy;

/*! \brief Elements of `data` by their indices (int32 or int64) along one axis. An index outside of
 *  the data reads its nearest element.
 *
 * - Whole slices: out[i..., j..., k...] = data[i..., indices[j...], k...], where i... are the
 *   dimensions before the axis and k... those behind it.
 * - `elementwise` not 0: `indices` has the shape of `out`, and as many dimensions as `data`;
 *   out[i] = data[i with indices[i] in the place of i[axis]].
 */
typedef struct npu_gather {
  npu_tensor data, indices, out;
  int32_t axis;
  int32_t elementwise;
} npu_gather;

/*! \brief What a scan collects. */
typedef enum npu_scan_kind {
  NPU_SCAN_SUM = 0,
  NPU_SCAN_PRODUCT = 1,
} npu_scan_kind;

/*! \brief Running sums or products along an axis: out[i] collects data[0] to data[i], without
 *  data[i] if `exclusive` is not 0. `out` has the shape of `data`; both are integers (computed in
 *  int64) or both real numbers (in float32). */
typedef struct npu_scan {
  npu_tensor data, out;
  npu_scan_kind kind;
  int32_t axis;
  int32_t exclusive;
} npu_scan;

/*! \brief The order of the elements along an axis: out[..., i, ...] is the index of the i-th
 *  smallest, or largest (`descending` not 0) element. Equal elements keep their order; NaN counts
 * as larger than any number. `out` is int32 or int64, and may be shorter than `data` along the
 * axis: then the first ones count. */
typedef struct npu_order {
  npu_tensor data, out;
  int32_t axis;
  int32_t descending;
} npu_order;

/*! \brief Collects tensors and operations; see npu_build_api. */
typedef struct npu_builder npu_builder;

/*! \brief The build half. Every function but `destroy` and `error` returns a status; after one
 *  that is not NPU_OK, `error` tells why and the builder can only be destroyed. */
typedef struct npu_build_api {
  uint32_t version;
  npu_status (*create)(const npu_option* options, size_t option_count, npu_builder** builder);
  /*! \brief Accepts NULL. */
  void (*destroy)(npu_builder* builder);
  /*! \brief A sentence: why this builder failed, or (NULL) the last `create` on this thread. */
  const char* (*error)(const npu_builder* builder);
  /*! \brief Adds a symbol, a size that is known at the call: it is 1 to `bound`, and the shapes of
   *  the inputs tell it. */
  npu_status (*add_symbol)(npu_builder* builder, const char* name, int64_t bound, int32_t* symbol);
  /*! \brief Adds the next input of the program. */
  npu_status (*add_input)(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor);
  /*! \brief Adds a constant; the data is not copied and must live as long as the builder. */
  npu_status (*add_constant)(npu_builder* builder, const npu_tensor_desc* desc, const void* data,
                             size_t bytes, npu_tensor* tensor);
  /*! \brief Adds a tensor that operations write. */
  npu_status (*add_tensor)(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor);
  /*! \brief The same elements under another shape. */
  npu_status (*add_view)(npu_builder* builder, npu_tensor data, const npu_tensor_desc* desc,
                         npu_tensor* tensor);
  /*! \brief Names the operations that follow, for messages and listings; the text is copied. */
  npu_status (*set_label)(npu_builder* builder, const char* label);
  npu_status (*add_matmul)(npu_builder* builder, const npu_matmul* op);
  npu_status (*add_convolution)(npu_builder* builder, const npu_convolution* op);
  npu_status (*add_pool)(npu_builder* builder, const npu_pool* op);
  npu_status (*add_elementwise)(npu_builder* builder, const npu_elementwise* op);
  npu_status (*add_reduce)(npu_builder* builder, const npu_reduce* op);
  npu_status (*add_copy)(npu_builder* builder, const npu_copy* op);
  npu_status (*add_gather)(npu_builder* builder, const npu_gather* op);
  npu_status (*add_scan)(npu_builder* builder, const npu_scan* op);
  npu_status (*add_order)(npu_builder* builder, const npu_order* op);
  /*! \brief Makes a tensor (of any kind, also an input or one already marked) the next output. */
  npu_status (*mark_output)(npu_builder* builder, npu_tensor tensor);
  /*! \brief Compiles to bytes that stay valid until the builder is destroyed. With `bytes` null it
   *  only tells whether it could. */
  npu_status (*finish)(npu_builder* builder, const uint8_t** bytes, size_t* size);
} npu_build_api;

/*! \brief An open device. */
typedef struct npu_device npu_device;
/*! \brief A loaded program. */
typedef struct npu_program npu_program;
/*! \brief One execution of a program, with the memory that it needs; reusable, one at a time. */
typedef struct npu_request npu_request;

/*! \brief The engines of the device whose time is counted. */
typedef enum npu_engine {
  NPU_ENGINE_MATRIX = 0,
  NPU_ENGINE_VECTOR,
  /*! \brief Transfers to the scratchpad. */
  NPU_ENGINE_DMA_IN,
  /*! \brief All other transfers. */
  NPU_ENGINE_DMA_OUT,
  NPU_ENGINE_COUNT,
} npu_engine;

/*! \brief What a request did since it was created; sums over its submissions but where it says
 *  otherwise. A device that cannot count something leaves it 0. */
typedef struct npu_counters {
  uint64_t submissions;
  /*! \brief Submissions that did not end with NPU_OK. */
  uint64_t failures;
  uint64_t commands;
  /*! \brief Floating-point operations of matmuls and convolutions. */
  uint64_t matrix_operations;
  /*! \brief Device cycles from the first command to the end of the last one. */
  uint64_t cycles;
  /*! \brief By engine, over all cores: cycles of work, and cycles of waiting for other engines. */
  uint64_t busy_cycles[NPU_ENGINE_COUNT];
  uint64_t stalled_cycles[NPU_ENGINE_COUNT];
  /*! \brief Bytes read and written. */
  uint64_t dram_bytes_read, dram_bytes_written;
  uint64_t scratchpad_bytes_read, scratchpad_bytes_written;
  /*! \brief Bytes of DRAM that intermediates share, of the scratchpad in use at most, and of
   *  constants; not sums. */
  uint64_t arena_bytes, scratchpad_bytes, constant_bytes;
  /*! \brief Cycles per microsecond; not a sum. */
  uint64_t frequency_mhz;
} npu_counters;

/*! \brief The run half. A board needs no other. */
typedef struct npu_run_api {
  uint32_t version;
  /*! \brief A sentence about the last failure on this thread. */
  const char* (*error)(void);
  /*! \brief Opens device `index`, counted from 0. */
  npu_status (*open)(int32_t index, npu_device** device);
  /*! \brief Accepts NULL. Programs of the device must have been unloaded. */
  void (*close)(npu_device* device);
  /*! \brief Checks the bytes; corrupt ones are NPU_INVALID, never a crash. They are aligned to 64
   *  bytes, do not change, and live until the program is unloaded: a driver need not copy them. */
  npu_status (*load)(npu_device* device, const uint8_t* bytes, size_t size, npu_program** program);
  /*! \brief Accepts NULL. Requests of the program must have been destroyed. */
  void (*unload)(npu_program* program);
  /*! \brief A text for people that says what the program does, and with which memory; valid until
   *  the program is unloaded. */
  npu_status (*describe)(npu_program* program, const char** text);
  npu_status (*create_request)(npu_program* program, npu_request** request);
  /*! \brief Accepts NULL. A request that runs is cancelled, and waited for. */
  void (*destroy_request)(npu_request* request);
  /*! \brief Sets input `index` to `data` of this shape; symbols take their values from it. Data is
   *  aligned to its elements. */
  npu_status (*bind_input)(npu_request* request, size_t index, const void* data,
                           const int64_t* shape, int32_t rank);
  /*! \brief Sets output `index`; the shape is checked when the request is submitted. The buffer
   *  overlaps with no other one of the request. */
  npu_status (*bind_output)(npu_request* request, size_t index, void* data, const int64_t* shape,
                            int32_t rank);
  /*! \brief Does the work and returns when it is done: submit and wait, without the hand-over. */
  npu_status (*execute)(npu_request* request);
  /*! \brief Starts the work and returns. Until `wait` has returned something else than NPU_TIMEOUT,
   *  bound buffers must live, and the request can neither be bound nor submitted. */
  npu_status (*submit)(npu_request* request);
  /*! \brief Waits until the work is done and returns its status, or NPU_TIMEOUT after so many
   *  microseconds (negative: never). Needed once after each successful submit. */
  npu_status (*wait)(npu_request* request, int64_t timeout_us);
  /*! \brief Asks for the end of work that was submitted; `wait` then returns NPU_CANCELLED, or the
   *  status of work that was done before. May be called from another thread than `wait`. */
  npu_status (*cancel)(npu_request* request);
  /*! \brief Not while the request runs. */
  npu_status (*counters)(const npu_request* request, npu_counters* counters);
} npu_run_api;

#pragma GCC visibility push(default)
/*! \brief The build half of this driver: in the library that compiles, not on a board. */
const npu_build_api* NPU_BUILD_API(void);
/*! \brief The run half of this driver. */
const npu_run_api* NPU_RUN_API(void);
#pragma GCC visibility pop

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // NPU_DRIVER_H_
