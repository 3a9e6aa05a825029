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
 * call from several threads as long as no two calls share a builder or a request (except `cancel`).
 *
 * This header is append-only; docs/driver-abi.md has the rules. In short: structs that begin with
 * `size` may grow at their end and are passed by pointer, all others never change; enums get new
 * values; a driver that was written against an older header compiles and works with a newer engine.
 *
 * An absent function is an answer. A build half needs `create`, `add_input`, `add_tensor`,
 * `mark_output`, `finish` and one operation; a run half needs `load`, `create_request`,
 * `bind_input`, `bind_output` and `execute` (or `submit` and `wait`). Every other one may be NULL;
 * its comment says what that means. An operation that is NULL is declined.
 */
#ifndef NPU_DRIVER_H_
#define NPU_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief The version of this header. Everything not marked otherwise dates from version 1.
 */
#define NPU_DRIVER_API_VERSION 4
/*! \brief The most dimensions that a tensor may have. */
#define NPU_MAX_RANK 8
/*! \brief The most spatial dimensions of a convolution or a pool. */
#define NPU_MAX_SPATIAL 3
/*! \brief The most tensors that one vector program may read. */
#define NPU_MAX_VECTOR_INPUTS 16
/*! \brief Whether the other side, which wrote `size`, knows a field of a struct. */
#define NPU_HAS(type, pointer, field) \
  ((pointer)->size >= offsetof(type, field) + sizeof((pointer)->field))

/*! \brief The outcome of a call. */
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
  /*! \brief The time was up before the work was done; the work continues. */
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
  /*! \brief Since version 3. */
  NPU_INT16 = 7,
} npu_dtype;

/*! \brief One dimension: `size`, or `size` times the value of a symbol that is known at the call.
 */
typedef struct npu_dim {
  /*! \brief The size, or the factor of the symbol. */
  int64_t size;
  /*! \brief Index of the symbol, or -1 where the size is fixed. */
  int32_t symbol;
} npu_dim;

/*! \brief Shape and type of a dense, row-major tensor, its dimensions in the order that operations
 *  name, or in the one that the driver declares (npu_layout). Rank 0 is a scalar. It never grows:
 *  any further property of a tensor will have a function of its own. */
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
 * Arithmetic is in int64 where the output and everything that is loaded (including the accumulator)
 * are integers or bools: sums and products keep the low 64 bits, the store keeps the low bits of
 * the output's type. Elsewhere it is in float32: loads convert to it, the store converts to the
 * output's type (to nearest even, saturating, for integers; NaN becomes 0). A bool is loaded as 0
 * or 1, and stored as whether the value is not 0.
 */

/*! \brief Operations of the vector engine. `a`, `b`, `c` are operands. */
typedef enum npu_vector_opcode {
  /*! \brief Element of input number `a`, broadcast to the output's shape as NumPy does. In the
   *  epilogue of a matmul, convolution or reduction, input 0 is the accumulator. */
  NPU_VECTOR_LOAD = 0,
  /*! \brief The number `immediate`. In int64: rounded to the nearest integer, which must fit into
   *  64 bits. */
  NPU_VECTOR_CONSTANT = 1,
  NPU_VECTOR_ADD = 2,
  NPU_VECTOR_SUBTRACT = 3,
  NPU_VECTOR_MULTIPLY = 4,
  /*! \brief a / b. In int64: rounded towards zero, and 0 where b is 0. */
  NPU_VECTOR_DIVIDE = 5,
  /*! \brief The larger operand; NaN if either is NaN. */
  NPU_VECTOR_MAXIMUM = 6,
  /*! \brief The smaller operand; NaN if either is NaN. */
  NPU_VECTOR_MINIMUM = 7,
  /*! \brief The quotient, rounded to the next lower integer. In int64: 0 where b is 0. */
  NPU_VECTOR_FLOOR_DIVIDE = 8,
  /*! \brief a - b * trunc(a / b): the sign is a's. In int64: 0 where b is 0. */
  NPU_VECTOR_REMAINDER = 9,
  /*! \brief 1 where a < b, else 0. */
  NPU_VECTOR_LESS = 10,
  /*! \brief 1 where a == b, else 0. */
  NPU_VECTOR_EQUAL = 11,
  /*! \brief b where a is not 0, else c. */
  NPU_VECTOR_SELECT = 12,
  NPU_VECTOR_ABSOLUTE = 13,
  /* The following are for float32 only. */
  NPU_VECTOR_POWER = 14,
  NPU_VECTOR_EXP = 15,
  NPU_VECTOR_LOG = 16,
  NPU_VECTOR_SQRT = 17,
  NPU_VECTOR_TANH = 18,
  NPU_VECTOR_ERF = 19,
  /*! \brief 1 / (1 + exp(-a)). */
  NPU_VECTOR_SIGMOID = 20,
  NPU_VECTOR_SIN = 21,
  NPU_VECTOR_COS = 22,
  NPU_VECTOR_TAN = 23,
  NPU_VECTOR_ATAN = 24,
  NPU_VECTOR_FLOOR = 25,
  NPU_VECTOR_TRUNCATE = 26,
  /*! \brief To the nearest integer, halves to even. */
  NPU_VECTOR_ROUND_EVEN = 27,
  /*! \brief To the nearest integer, halves away from zero. */
  NPU_VECTOR_ROUND_AWAY = 28,
  /* This one is for int64 only. */
  /*! \brief a * b / 2^c, rounded as `immediate`, an npu_rounding, says. The quotient is exact
   *  before it is rounded, and its low 64 bits are kept. A shift c below 0 counts as 0, one above
   *  62 as 62. Since version 3. */
  NPU_VECTOR_RESCALE = 29,
} npu_vector_opcode;

/*! \brief The number of opcodes in this header. */
#define NPU_VECTOR_OPCODE_COUNT 30

/*! \brief How NPU_VECTOR_RESCALE rounds; >> is the arithmetic shift, which rounds down. With c = 0
 *  there is nothing to round: all give a * b. Since version 3. */
typedef enum npu_rounding {
  /*! \brief Halves up: (a * b + 2^(c - 1)) >> c. TOSA's SINGLE_ROUND. */
  NPU_ROUND_HALF_UP = 0,
  /*! \brief TOSA's DOUBLE_ROUND: as HALF_UP where c is at most 31; above, 2^30 is also added before
   *  the shift where a >= 0, or subtracted where a < 0. */
  NPU_ROUND_DOUBLE = 1,
  /*! \brief To the nearest, halves to even. */
  NPU_ROUND_HALF_EVEN = 2,
  /*! \brief To the nearest, halves away from zero. */
  NPU_ROUND_HALF_AWAY = 3,
  /*! \brief a * b >> c. */
  NPU_ROUND_DOWN = 4,
  NPU_ROUND_TO_ZERO = 5,
} npu_rounding;

/*! \brief One instruction of a vector program. */
typedef struct npu_vector_instruction {
  npu_vector_opcode opcode;
  int32_t a, b, c;
  double immediate;
} npu_vector_instruction;

/* The same program as steps of the model that it came from: one for each op that it fuses, or,
 * where a lowering wrote the program itself, one for each instruction. A driver may read these
 * instead of the instructions; both compute the same, and the last step is what is stored. */

/*! \brief What a step computes from its operands a, b and c. Kinds named as an opcode do what that
 *  opcode does. */
typedef enum npu_step_kind {
  /*! \brief Not one of these: `op` tells what it is, the instructions what it computes. */
  NPU_STEP_OTHER = 0,
  /*! \brief a + b. */
  NPU_STEP_ADD = 1,
  /*! \brief a + b, where b has one element for each channel: dimension 1 of a convolution's result
   * (in the header's order; see npu_layout), the last one of a matmul's. */
  NPU_STEP_BIAS = 2,
  /*! \brief a + b, where b is a tensor of the result's shape. */
  NPU_STEP_RESIDUAL = 3,
  /*! \brief a - b. */
  NPU_STEP_SUBTRACT = 4,
  /*! \brief a * b. */
  NPU_STEP_MULTIPLY = 5,
  /*! \brief a * b, where b has one element for each channel. */
  NPU_STEP_SCALE = 6,
  /*! \brief a / b, as NPU_VECTOR_DIVIDE. */
  NPU_STEP_DIVIDE = 7,
  /*! \brief The larger one, as NPU_VECTOR_MAXIMUM. */
  NPU_STEP_MAXIMUM = 8,
  NPU_STEP_MINIMUM = 9,
  /*! \brief As NPU_VECTOR_FLOOR_DIVIDE. */
  NPU_STEP_FLOOR_DIVIDE = 10,
  /*! \brief As NPU_VECTOR_REMAINDER. */
  NPU_STEP_REMAINDER = 11,
  /*! \brief 1 where a < b, else 0. */
  NPU_STEP_LESS = 12,
  NPU_STEP_EQUAL = 13,
  /*! \brief b where a is not 0, else c. */
  NPU_STEP_SELECT = 14,
  NPU_STEP_ABSOLUTE = 15,
  NPU_STEP_POWER = 16,
  NPU_STEP_EXP = 17,
  NPU_STEP_LOG = 18,
  NPU_STEP_SQRT = 19,
  NPU_STEP_TANH = 20,
  NPU_STEP_ERF = 21,
  NPU_STEP_SIGMOID = 22,
  NPU_STEP_SIN = 23,
  NPU_STEP_COS = 24,
  NPU_STEP_TAN = 25,
  NPU_STEP_ATAN = 26,
  NPU_STEP_FLOOR = 27,
  NPU_STEP_TRUNCATE = 28,
  NPU_STEP_ROUND_EVEN = 29,
  NPU_STEP_ROUND_AWAY = 30,
  /*! \brief max(a, 0). */
  NPU_STEP_RELU = 31,
  /*! \brief a limited to the numbers b (least) and c (most). */
  NPU_STEP_CLIP = 32,
  /*! \brief a where a > 0, else a times the number b. */
  NPU_STEP_LEAKY_RELU = 33,
  /*! \brief a where a > 0, else a * b. */
  NPU_STEP_PRELU = 34,
  /*! \brief 0.5 * a * (1 + erf(a / sqrt(2))). */
  NPU_STEP_GELU = 35,
  /*! \brief GELU's approximation by tanh. */
  NPU_STEP_GELU_TANH = 36,
  /*! \brief a * sigmoid(a). */
  NPU_STEP_SILU = 37,
  /*! \brief log(1 + exp(a * b)) / b, and a where a * b > c, with numbers b and c. */
  NPU_STEP_SOFTPLUS = 38,
  NPU_STEP_SELU = 39,
  NPU_STEP_CEIL = 40,
  /*! \brief 1 / sqrt(a). */
  NPU_STEP_RSQRT = 41,
  NPU_STEP_SQUARE = 42,
  NPU_STEP_NEGATE = 43,
  NPU_STEP_SIGN = 44,
  /*! \brief a in the output's type. */
  NPU_STEP_CAST = 45,
  /*! \brief As NPU_VECTOR_RESCALE: a times the multiplier b by 2 to the shift c. The fourth operand
   *  is a number, an npu_rounding. Since version 3. */
  NPU_STEP_RESCALE = 46,
  /*! \brief a * min(max(a + 3, 0), 6) / 6. Only nodes of the driver kit have this kind; programs
   *  have the steps that it consists of. Since version 4. */
  NPU_STEP_HARD_SWISH = 47,
} npu_step_kind;

/*! \brief Where an operand of a step comes from. */
typedef enum npu_operand_kind {
  /*! \brief The value computed by the operation whose epilogue this is. */
  NPU_OPERAND_ACCUMULATOR = 0,
  /*! \brief The tensor `index`, broadcast to the output's shape as NumPy does. */
  NPU_OPERAND_TENSOR = 1,
  /*! \brief The result of step `index`, an earlier one. */
  NPU_OPERAND_STEP = 2,
  /*! \brief The number `number`. */
  NPU_OPERAND_NUMBER = 3,
} npu_operand_kind;

/*! \brief The most operands of a step. */
#define NPU_MAX_OPERANDS 4

/*! \brief An operand of a step; never grows. */
typedef struct npu_operand {
  npu_operand_kind kind;
  int32_t index;
  double number;
} npu_operand;

/*! \brief One step; never grows. */
typedef struct npu_step {
  npu_step_kind kind;
  /*! \brief How many operands it has; operands from steps or the accumulator come first where the
   *  order does not matter. */
  int32_t operand_count;
  npu_operand operands[NPU_MAX_OPERANDS];
  /*! \brief The op it came from, e.g. "relax.nn.relu"; "" where it is an instruction. */
  const char* op;
} npu_step;

/*! \brief A program and the tensors that it reads. */
typedef struct npu_vector_program {
  uint32_t size;
  int32_t instruction_count;
  const npu_vector_instruction* instructions;
  /*! \brief What NPU_VECTOR_LOAD reads. In an epilogue, entry 0 is ignored (the accumulator), and
   *  there may be none. */
  const npu_tensor* inputs;
  int32_t input_count;
  int32_t step_count;
  /*! \brief The program as steps; complete. */
  const npu_step* steps;
} npu_vector_program;

/* ---- Operations ------------------------------------------------------------------------------
 * Each begins with its `size` as the caller knows it, sizeof(npu_matmul) and so on.
 *
 * `epilogue` is applied to each result before it is stored; NULL stores it unchanged.
 *
 * Products of integers (version 3; a driver says by npu_build_api.integers that it has them): both
 * operands of a matmul or convolution are integers of 8 bits, int8 or uint8, each its own. Operand
 * a, or data, may be int16; then operand b of a matmul may also be int16. The result is the sum of
 * (a - a_zero_point) * (b - b_zero_point), where padding contributes nothing, as if it were the
 * zero point. The accumulator is an int32, the low 32 bits of the exact sum; where operand a is an
 * int16, it is an int64, of which the engine uses 48 bits. As always, the epilogue is computed in
 * int64 if the output and all that it loads are integers, and in float32 otherwise. Without an
 * epilogue the output has the accumulator's type.
 *
 * Weights of integers (version 3; npu_build_api.integer_weights): operand a of a matmul is float32
 * or float16, operand b int8 or uint8. The accumulator is float32, and the result is the sum of
 * a * (b - b_zero_point); scales, one or one by channel, are in the epilogue, as any SCALE. Where
 * scales change along the summed dimension, b_block tells after how many elements: then b has 2
 * dimensions, and stands for
 *
 *   (b[k, n] - b_zero_points[k / b_block, n]) * b_scales[k / b_block, n]
 */

/*! \brief out[..., m, n] = sum over k of a[..., m, k] * b[..., k, n]; leading dims broadcast. Both
 *  operands have at least 2 dimensions. */
typedef struct npu_matmul {
  uint32_t size;
  npu_tensor a, b, out;
  /*! \brief Not 0: the operand is stored with its last two dimensions swapped. */
  int32_t transpose_a, transpose_b;
  const npu_vector_program* epilogue;
  /*! \brief For products of integers: numbers of the operands' types; else 0. Since version 3. */
  int32_t a_zero_point, b_zero_point;
  /*! \brief For weights of integers: 4 if all numbers of b are -8 to 7, or 0 to 15 where they are
   *  unsigned, so that a driver may pack two into a byte; else 8. 0 for other products. Since
   *  version 3. */
  int32_t b_bits;
  /*! \brief For weights of integers: how many elements of the summed dimension share a scale; it
   *  divides that dimension. 0: the scales are in the epilogue. Since version 3. */
  int32_t b_block;
  /*! \brief If b_block is not 0: [K / b_block, N], also where b is stored transposed. The scales
   *  are float32, the zero points have the type of b. Without zero points (-1) all are
   *  b_zero_point. Since version 3. */
  npu_tensor b_scales, b_zero_points;
} npu_matmul;

/*! \brief Cross-correlation of data [N, C, spatial...] with weight [O, C / groups, spatial...]. */
typedef struct npu_convolution {
  uint32_t size;
  npu_tensor data, weight, out;
  int32_t spatial_rank;
  int64_t strides[NPU_MAX_SPATIAL];
  int64_t dilations[NPU_MAX_SPATIAL];
  int64_t pads_begin[NPU_MAX_SPATIAL];
  int64_t pads_end[NPU_MAX_SPATIAL];
  int64_t groups;
  const npu_vector_program* epilogue;
  /*! \brief For products of integers: numbers of the operands' types; else 0. Since version 3. */
  int32_t data_zero_point, weight_zero_point;
} npu_convolution;

/*! \brief The result of a pool for a window. */
typedef enum npu_pool_kind {
  NPU_POOL_MAX = 0,
  /*! \brief The mean of the elements inside the data. */
  NPU_POOL_AVERAGE = 1,
  /*! \brief The mean with padding counted as zeros (not what ceil mode adds beyond it). */
  NPU_POOL_AVERAGE_INCLUDE_PAD = 2,
  /*! \brief Window i covers [floor(i * in / out), ceil((i + 1) * in / out)); only the shapes of the
   *  data and the output matter. */
  NPU_POOL_AVERAGE_ADAPTIVE = 3,
} npu_pool_kind;

/*! \brief Pooling of data [N, C, spatial...]. In ceil mode, which only the shape of `out` reveals,
 * the last window of a dimension reaches beyond pads_end, by (out - 1) * stride + (window - 1) *
 * dilation + 1 - (in + pad_begin + pad_end). */
typedef struct npu_pool {
  uint32_t size;
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
  uint32_t size;
  npu_tensor out;
  const npu_vector_program* program;
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
  uint32_t size;
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
  uint32_t size;
  npu_tensor data, out;
  int32_t permutation[NPU_MAX_RANK];
  /*! \brief Where the box starts, and how far apart its elements are, by dimension of `data`. A
   * step is not 0; a negative one goes backwards from the offset. */
  int64_t data_offset[NPU_MAX_RANK];
  int64_t data_step[NPU_MAX_RANK];
  /*! \brief The same by dimension of `out`; steps are positive. A dimension must have a fixed size
   *  unless the box covers all of it in both tensors, in order. */
  int64_t out_offset[NPU_MAX_RANK];
  int64_t out_step[NPU_MAX_RANK];
  int32_t fill;
  double fill_value;
} npu_copy;

/*! \brief Elements of `data` by their indices (int32 or int64) along one axis. An index outside of
 *  the data reads its nearest element.
 *
 * - Whole slices: out[i..., j..., k...] = data[i..., indices[j...], k...], where i... are the
 *   dimensions before the axis and k... those after it.
 * - `elementwise` not 0: `indices` has the shape of `out`, and as many dimensions as `data`;
 *   out[i] = data[i with indices[i] in the place of i[axis]].
 */
typedef struct npu_gather {
  uint32_t size;
  npu_tensor data, indices, out;
  int32_t axis;
  int32_t elementwise;
} npu_gather;

/*! \brief The result that a scan accumulates. */
typedef enum npu_scan_kind {
  NPU_SCAN_SUM = 0,
  NPU_SCAN_PRODUCT = 1,
} npu_scan_kind;

/*! \brief Running sums or products along an axis: out[i] collects data[0] to data[i], without
 *  data[i] if `exclusive` is not 0. `out` has the shape of `data`; both are integers (computed in
 *  int64) or both real numbers (in float32). */
typedef struct npu_scan {
  uint32_t size;
  npu_tensor data, out;
  npu_scan_kind kind;
  int32_t axis;
  int32_t exclusive;
} npu_scan;

/*! \brief The order of the elements along an axis: out[..., i, ...] is the index of the i-th
 *  smallest, or largest (`descending` not 0) element. Equal elements keep their order; NaN counts
 * as larger than any number. `out` is int32 or int64, and may be shorter than `data` along the
 * axis: then it has only the first ones. */
typedef struct npu_order {
  uint32_t size;
  npu_tensor data, out;
  int32_t axis;
  int32_t descending;
} npu_order;

/*! \brief A function of 8-bit integers as a table: out[i] = table[data[i] - least], where `least`
 * is the smallest number of the data's type, int8 or uint8. `table` is a constant of 256 elements
 * of the type of `out`, which has the shape of `data`. Since version 3. */
typedef struct npu_lookup {
  uint32_t size;
  npu_tensor data, table, out;
} npu_lookup;

/*! \brief Tensors one after the other along an axis. They have the type of `out`, and all of its
 *  dimensions but for the axis. Since version 4. */
typedef struct npu_concat {
  uint32_t size;
  npu_tensor out;
  /*! \brief At least one; the list lives only during the call. */
  const npu_tensor* inputs;
  int32_t input_count;
  int32_t axis;
} npu_concat;

/*! \brief Softmax along an axis: exp(data) divided by its sum, or the logarithm of that
 *  (`logarithm` not 0). `out` has the shape of `data`. Since version 4. */
typedef struct npu_softmax {
  uint32_t size;
  npu_tensor data, out;
  int32_t axis;
  int32_t logarithm;
} npu_softmax;

/*! \brief How a resize computes an element. Since version 4. */
typedef enum npu_resize_kind {
  /*! \brief The element nearest to its position, as npu_resize_rounding says. */
  NPU_RESIZE_NEAREST = 0,
  /*! \brief Between the two neighbours of each axis, in proportion. */
  NPU_RESIZE_LINEAR = 1,
  /*! \brief Cubic convolution of the four neighbours of each axis. */
  NPU_RESIZE_CUBIC = 2,
} npu_resize_kind;

/*! \brief The position in the data of element i of an axis; `in` and `out` are its sizes. Names as
 *  of ONNX. Since version 4. */
typedef enum npu_resize_position {
  /*! \brief (i + 0.5) * in / out - 0.5. */
  NPU_RESIZE_HALF_PIXEL = 0,
  /*! \brief The same, and 0 where `out` is 1. */
  NPU_RESIZE_PYTORCH_HALF_PIXEL = 1,
  /*! \brief i * (in - 1) / (out - 1), and 0 where `out` is 1. */
  NPU_RESIZE_ALIGN_CORNERS = 2,
  /*! \brief i * in / out. */
  NPU_RESIZE_ASYMMETRIC = 3,
  /*! \brief (i + 0.5) * in / out. */
  NPU_RESIZE_TF_HALF_PIXEL_FOR_NN = 4,
} npu_resize_position;

/*! \brief Which element is nearest to a position. Since version 4. */
typedef enum npu_resize_rounding {
  NPU_RESIZE_ROUND_FLOOR = 0,
  NPU_RESIZE_ROUND_CEIL = 1,
  /*! \brief Halves down. */
  NPU_RESIZE_ROUND_PREFER_FLOOR = 2,
  /*! \brief Halves up. */
  NPU_RESIZE_ROUND_PREFER_CEIL = 3,
  /*! \brief Halves to even. */
  NPU_RESIZE_ROUND_EVEN = 4,
} npu_resize_rounding;

/*! \brief Resizes two axes; positions outside of the data mean its border. Since version 4. */
typedef struct npu_resize {
  uint32_t size;
  npu_tensor data, out;
  /*! \brief Height and width. */
  int32_t axes[2];
  npu_resize_kind kind;
  npu_resize_position position;
  npu_resize_rounding rounding;
  /*! \brief Of cubic convolution: its coefficient, often -0.75 or -0.5, and whether (not 0) the
   *  weights of elements outside of the data are 0, and the others are scaled to a sum of 1. */
  double cubic_alpha;
  int32_t cubic_exclude;
} npu_resize;

/*! \brief The transposed convolution of data [N, C, spatial...] with weight [C, O / groups,
 *  spatial...]: element i of the data adds its product with element k of the weight to element
 *  i * stride + k * dilation - pad_begin of `out`, if there is such a one. Its size is
 *  (in - 1) * stride + (kernel - 1) * dilation + 1 - pad_begin - pad_end + output_padding.
 *  Integers have scales at tensors. Since version 4. */
typedef struct npu_transposed_convolution {
  uint32_t size;
  npu_tensor data, weight, out;
  int32_t spatial_rank;
  int64_t strides[NPU_MAX_SPATIAL];
  int64_t dilations[NPU_MAX_SPATIAL];
  int64_t pads_begin[NPU_MAX_SPATIAL];
  int64_t pads_end[NPU_MAX_SPATIAL];
  int64_t output_padding[NPU_MAX_SPATIAL];
  int64_t groups;
  const npu_vector_program* epilogue;
} npu_transposed_convolution;

/*! \brief Slices of `data` along an axis that are replaced: slice positions[j] of `out` is slice j
 * of `value`, the last of them if positions are equal, and every other slice is that of `data`. A
 *  position outside of the axis replaces nothing. `positions` are int32 or int64, one for each
 *  slice of `value`, which has all other dimensions of `data`. Since version 4. */
typedef struct npu_update {
  uint32_t size;
  npu_tensor data, value, positions, out;
  int32_t axis;
} npu_update;

/* The list of operations, for code that treats them alike: X(name, reads) for each npu_<name>,
 * which add_<name> adds. `reads` is R(name, role) for each tensor that it always reads, but for
 * those of a vector program. New ones are added at the end.
 *
 * Plain operations have no pointers, no vector program and no layout of their own. An element of
 * `out` depends on the element of the first tensor in the same place, or, if there is a field
 * `axis`, on the elements along it; the other tensors are read whole. */
#define NPU_PLAIN_OPERATIONS(X, R) \
  X(scan, R(scan, data))           \
  X(order, R(order, data))         \
  X(lookup, R(lookup, data) R(lookup, table))
#define NPU_OPERATIONS(X, R)                                  \
  X(matmul, R(matmul, a) R(matmul, b))                        \
  X(convolution, R(convolution, data) R(convolution, weight)) \
  X(pool, R(pool, data))                                      \
  X(elementwise, )                                            \
  X(reduce, R(reduce, data))                                  \
  X(copy, R(copy, data))                                      \
  X(gather, R(gather, data) R(gather, indices))               \
  NPU_PLAIN_OPERATIONS(X, R)
/* Whole operations (version 4) are for drivers that have them. The engine also knows how to compose
 * each of the operations above, and does so where the function is absent, or declines the call:
 * then it builds the program again, with another builder. So a driver may decline what it likes. */
#define NPU_WHOLE_OPERATIONS(X, R)                                                             \
  X(concat, )                                                                                  \
  X(softmax, R(softmax, data))                                                                 \
  X(resize, R(resize, data))                                                                   \
  X(transposed_convolution, R(transposed_convolution, data) R(transposed_convolution, weight)) \
  X(update, R(update, data) R(update, value) R(update, positions))

/* ---- Layouts (version 2) ----------------------------------------------------------------------
 * Tensors have their dimensions in the order that the operations above name: [N, C, spatial...] and
 * [O, C / groups, spatial...]. A driver whose hardware wants another one, channels last or channels
 * in blocks for example, declares it with the function `layout` of the build half, for convolutions
 * (also transposed ones) and pools. Then
 *
 * - their tensors arrive with the dimensions in that order. What belongs to spatial dimensions
 *   (strides, pads) stays in the order depth, height, width;
 * - element-wise and plain operations (NPU_PLAIN_OPERATIONS), reductions, copies, concats, softmax,
 *   resizes, and gathers of elements or along an axis take the order of what they read: axes,
 *   offsets and permutations are those of the tensors as they arrive. Matmuls and other gathers
 *   have the header's order, and so has what would cut a block;
 * - where the result of an operation with an epilogue, or of an element-wise one, has another order
 *   than the header's, all tensors that the program reads have as many dimensions as the result, in
 *   the same order: a bias [C, 1, 1] of channels last is [1, 1, 1, C];
 * - constants are permuted when compiling, inputs and outputs of the program by the runtime: what
 *   is bound has the order in which it was added or marked. An input of the region may become none,
 *   one or several inputs of the program, which are added where they are first read;
 * - a change of the order in between is an `add_copy` of a whole tensor with a permutation. A view
 *   keeps the elements in their places, as always.
 */

/*! \brief An operation whose layout a driver may choose. Since version 2. */
typedef enum npu_operation {
  NPU_OPERATION_CONVOLUTION = 0,
  NPU_OPERATION_POOL = 1,
  /*! \brief Only of drivers that have the function. `weight_order` permutes [C, O / groups,
   *  spatial...]. Since version 4. */
  NPU_OPERATION_TRANSPOSED_CONVOLUTION = 2,
} npu_operation;

/*! \brief The layout that a driver wants for an operation's tensors. Since version 2.
 *
 * An order is a permutation: dimension i of the driver's tensor is dimension order[i] of the
 * header's. Channels last is {0, 2, 3, 1}.
 *
 * Dimensions with blocks (since version 3) are stored as two, the number of the block and the place
 * in it, and count as two in an order. Channels in blocks of 16, last: `data_block` 16 and the
 * order {0, 1, 3, 4, 2} of [N, C / 16, 16, H, W]; `weight_block` {16, 16} and the order {0, 2, 4,
 * 5, 3, 1} of [O / 16, 16, I / 16, 16, H, W]. A block divides its dimension, whose size is fixed:
 * for other sizes, declare no block. */
typedef struct npu_layout {
  uint32_t size;
  /*! \brief The operation; shapes are in the header's order. A pool has no weight (rank 0)
   *  and one group. */
  npu_operation operation;
  npu_tensor_desc data, weight, out;
  int64_t groups;
  /*! \brief The answer; initially the header's order. `order` is that of `data`, and of `out`
   *  unless `out_order` says otherwise. */
  int32_t order[NPU_MAX_RANK];
  int32_t weight_order[NPU_MAX_RANK];
  /*! \brief The size of the blocks of the channels (dimension 1) of `data`, and of dimensions 0
   *  and 1 of `weight`; initially 0: no blocks. Since version 3: only if `size` includes it. */
  int32_t data_block, weight_block[2];
  /*! \brief Order and block of `out`. If out_order[0] is -1, its initial value, they are those of
   *  `data`. Since version 3. */
  int32_t out_block, out_order[NPU_MAX_RANK];
} npu_layout;

/* ---- Scales on tensors (version 4) ------------------------------------------------------------
 * A driver describes integers in one of two ways. Without `set_quantization`, quantized operations
 * are products of integers and RESCALE, above. With it, a tensor of integers has scales, and
 * operations mean what they mean for real numbers:
 *
 * - what reads such a tensor reads the numbers that it stands for. What is written to it is divided
 *   by the scale, rounded to the nearest integer (halves to even), moved by the zero point, and
 *   saturated. How far a driver may differ from that is data of the backend, no part of this
 * header;
 * - so a convolution of int8 with an epilogue of BIAS and RELU is the convolution of real numbers
 *   with that epilogue. A constant bias is an int32 (an int64, if the data is int16) whose scales
 *   are the products of those of data and weight. Limits are real numbers. The fields for zero
 *   points of npu_matmul and npu_convolution are 0;
 * - a vector program of one LOAD, whose one step is a CAST, quantizes, dequantizes, or rescales;
 * - copies, gathers, views, resizes to the nearest element, and maxima and minima of windows or
 *   axes take stored numbers from tensors to others of the same scales. `fill_value` is a stored
 *   number;
 * - integers without scales are integers: indices, for example, or int8 that no operation of the
 *   program quantizes or dequantizes, which are only moved.
 */

/*! \brief What the integers of a tensor stand for: (number - zero point) * scale. Since version 4.
 */
typedef struct npu_quantization {
  uint32_t size;
  /*! \brief How many scales, and zero points, there are: 1, or one for each index of a dimension.
   */
  int32_t count;
  /*! \brief That dimension; 0 if `count` is 1. */
  int32_t axis;
  /*! \brief Positive. Like the zero points, they live only during the call. */
  const float* scales;
  const int32_t* zero_points;
} npu_quantization;

/* ---- What a driver says about itself ------------------------------------------------------- */

/*! \brief The type of an option's value. */
typedef enum npu_option_type {
  /*! \brief "0" or "1". */
  NPU_OPTION_BOOL = 0,
  /*! \brief A whole number from `least` to `most`. */
  NPU_OPTION_INT = 1,
  /*! \brief Any text. */
  NPU_OPTION_TEXT = 2,
  /*! \brief One of `choices`. */
  NPU_OPTION_CHOICE = 3,
} npu_option_type;

/*! \brief An option of the driver, which users may set, and which `create` gets. Never grows. */
typedef struct npu_option_info {
  /*! \brief Lower case, words joined by "_". */
  const char* key;
  npu_option_type type;
  /*! \brief The value if it is not set. */
  const char* default_value;
  int64_t least, most;
  const char* const* choices;
  size_t choice_count;
  /*! \brief Its meaning, for people: a phrase without a full stop. */
  const char* about;
} npu_option_info;

/*! \brief How values of several requests, or calls, are combined. */
typedef enum npu_counter_kind {
  NPU_COUNTER_SUM = 0,
  /*! \brief Not a sum: the largest counts. */
  NPU_COUNTER_MOST = 1,
} npu_counter_kind;

/*! \brief Something that the device counts; never grows. */
typedef struct npu_counter_info {
  /*! \brief Lower case, words joined by "_", perhaps with parts after a ".". */
  const char* name;
  /*! \brief E.g. "cycles" or "bytes"; "" for plain numbers. */
  const char* unit;
  npu_counter_kind kind;
  /*! \brief Its meaning, for people: a phrase without a full stop. */
  const char* about;
} npu_counter_info;

/*! \brief Bytes that moved from and to a memory; never grows. */
typedef struct npu_traffic {
  /*! \brief E.g. "dram", the same names at each event. */
  const char* memory;
  uint64_t bytes_read, bytes_written;
} npu_traffic;

/*! \brief One stretch of work of one engine; never grows. Work that keeps two engines busy is one
 * event for each, with the traffic at the first. */
typedef struct npu_event {
  /*! \brief Its kind, e.g. "convolution". */
  const char* name;
  /*! \brief The text of set_label that it belongs to, or NULL. */
  const char* label;
  /*! \brief The engine, e.g. "matrix", with a part after a "." if there are several. */
  const char* engine;
  /*! \brief When it began and ended, since the beginning of the execution, in event_unit.
   */
  int64_t begin, end;
  /*! \brief How long the engine was busy within this interval. */
  int64_t busy;
  /*! \brief The engine whose work it had to wait for before it began, or NULL. */
  const char* waits_for;
  const npu_traffic* traffic;
  size_t traffic_count;
  /*! \brief Arithmetic, a multiplication with its addition as two; 0: none, or not counted. */
  uint64_t operations;
} npu_event;

/*! \brief Bytes that a program keeps for something, from when to when; never grows. */
typedef struct npu_allocation {
  /*! \brief E.g. "scratchpad". */
  const char* memory;
  /*! \brief The text of set_label of the operation that uses it first, or NULL. */
  const char* label;
  uint64_t offset, bytes;
  /*! \brief As of events. */
  int64_t begin, end;
} npu_allocation;

/*! \brief A memory of the device; never grows. */
typedef struct npu_memory {
  /*! \brief Its name in traffic and allocations. */
  const char* name;
  /*! \brief How large it is; 0: not known. */
  uint64_t bytes;
  /*! \brief The most bytes read and written per event_unit, taken together; 0: not known. */
  double bytes_per_unit;
} npu_memory;

/*! \brief Which work `cancel` can end before it is done. */
typedef enum npu_cancel_kind {
  /*! \brief None: the engine waits even for a call that takes too long. */
  NPU_CANCEL_NOTHING = 0,
  /*! \brief Work that has not begun. */
  NPU_CANCEL_WAITING = 1,
  /*! \brief Also work that has begun. */
  NPU_CANCEL_RUNNING = 2,
} npu_cancel_kind;

/* ---- Build ---------------------------------------------------------------------------------- */

/*! \brief Collects tensors and operations; see npu_build_api. */
typedef struct npu_builder npu_builder;

/*! \brief The build half. After a status that is not NPU_OK, `error` tells why, and the builder is
 *  only destroyed. */
typedef struct npu_build_api {
  /*! \brief sizeof(npu_build_api) and NPU_DRIVER_API_VERSION, as the driver was compiled. */
  uint32_t size;
  uint32_t version;
  /*! \brief The driver's name, the same in both halves: an artifact is run by the driver that has
   *  the name it was compiled with. */
  const char* name;
  /*! \brief The driver's own version, for people; or NULL. */
  const char* release;
  const npu_option_info* options;
  size_t option_count;

  /*! \brief Makes a builder, with all options that the driver has. */
  npu_status (*create)(const npu_option* options, size_t option_count, npu_builder** builder);
  /*! \brief Accepts NULL. Absent: nothing to free. */
  void (*destroy)(npu_builder* builder);
  /*! \brief A sentence: why this builder failed or, for NULL, the last `create` on this thread.
   *  Absent, or NULL: no reason is given. */
  const char* (*error)(const npu_builder* builder);
  /*! \brief Adds a symbol, a size that is known at the call: it is 1 to `bound`, and the shapes of
   *  the inputs determine it. Absent: sizes must be fixed. */
  npu_status (*add_symbol)(npu_builder* builder, const char* name, int64_t bound, int32_t* symbol);
  /*! \brief Adds the next input of the program. */
  npu_status (*add_input)(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor);
  /*! \brief Adds a constant; the data is not copied and lives as long as the builder. */
  npu_status (*add_constant)(npu_builder* builder, const npu_tensor_desc* desc, const void* data,
                             size_t bytes, npu_tensor* tensor);
  /*! \brief Adds a tensor that operations write, before they are read. */
  npu_status (*add_tensor)(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor);
  /*! \brief The same elements under another shape. No operation writes it, and perhaps none reads
   *  it. */
  npu_status (*add_view)(npu_builder* builder, npu_tensor data, const npu_tensor_desc* desc,
                         npu_tensor* tensor);
  /*! \brief Names the operations that follow, for messages and listings; the text lives only during
   *  the call. Absent: no names. */
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
  /*! \brief Compiles to bytes that stay valid until the builder is destroyed. With `bytes` NULL it
   *  only tells whether it could. Called once, as the last function before `destroy`. */
  npu_status (*finish)(npu_builder* builder, const uint8_t** bytes, size_t* size);
  /*! \brief Functions that only this driver has: a struct of its own by name, e.g. "acme.ops", or
   *  NULL where it has none of that name. A lowering reaches it by op.Extension. Absent: none. */
  const void* (*extension)(const char* name);
  /*! \brief Chooses the layout of an operation's tensors, before the operation is added; the same
   *  question has the same answer. Absent: all have the header's order. Since version 2. */
  npu_status (*layout)(npu_builder* builder, npu_layout* layout);
  /*! \brief Absent: lookups are declined, like any operation. Since version 3. */
  npu_status (*add_lookup)(npu_builder* builder, const npu_lookup* op);
  /*! \brief Not 0: the driver knows products of integers with their zero points, and RESCALE, which
   *  it may still decline. 0: they are declined for it, so that a driver that ignores zero points
   *  does not compute wrong results. Since version 3. */
  uint32_t integers;
  /*! \brief Not 0: the driver knows products of real numbers with weights of integers, which it may
   *  still decline. 0: it is given real numbers as weights. Since version 3. */
  uint32_t integer_weights;
  /*! \brief Says what the integers of a tensor, which was added before and which nothing has used
   *  yet, stand for: an input, a constant, a view, or a tensor that operations write. Absent:
   *  quantized operations are products of integers and RESCALE. Since version 4. */
  npu_status (*set_quantization)(npu_builder* builder, npu_tensor tensor,
                                 const npu_quantization* quantization);
  /*! \brief Tells whether it takes what was added as one composite, such as a convolution with its
   *  bias and relu, after it took each operation, and with the constants that are known. Asked for
   *  each composite while a model is partitioned, as the last function before `destroy`. Absent: a
   *  composite is taken if each operation is. Since version 4. */
  npu_status (*check_composite)(npu_builder* builder);
  /*! \brief Whole operations. Absent, or where they are declined: the engine composes them of
   *  others. Since version 4. */
  npu_status (*add_concat)(npu_builder* builder, const npu_concat* op);
  npu_status (*add_softmax)(npu_builder* builder, const npu_softmax* op);
  npu_status (*add_resize)(npu_builder* builder, const npu_resize* op);
  npu_status (*add_transposed_convolution)(npu_builder* builder,
                                           const npu_transposed_convolution* op);
  /*! \brief A text that changes with what decides about programs besides this library and the
   *  options, such as the version of an SDK: no cache then returns what was compiled before. Called
   *  right after `create`; valid until the builder is destroyed. Absent: nothing else decides.
   *  Since version 4. */
  npu_status (*identity)(npu_builder* builder, const char** text);
  /*! \brief What users should know of the program that `finish` has compiled, or could: lines, each
   *  a sentence, such as a warning of the SDK, which may have the label of an operation; one that
   *  begins with "note: " is no warning. After `finish`; valid until the builder is destroyed.
   *  Absent, NULL or "": nothing. Since version 4.
   */
  const char* (*warnings)(const npu_builder* builder);
  /*! \brief What enters the program when the model runs on data of its user, for SDKs that quantize
   *  by themselves: `count` samples of an input that was just added, one behind the other, each
   *  dense and row-major in the input's shape. They live as long as the builder. Called for all
   *  inputs with the same count, or for none. Absent: users cannot give such data. Since version 4.
   */
  npu_status (*set_samples)(npu_builder* builder, npu_tensor input, const void* data,
                            int64_t count);
  /*! \brief A whole operation, as those above. Since version 4. */
  npu_status (*add_update)(npu_builder* builder, const npu_update* op);
  /*! \brief Tells that `output`, which is marked and which an add_update of `input` computes, is
   * the next value of a state whose value is `input`, an input that nothing else reads. Sets
   * `shared` to 1 if calls may bind one buffer to both, in which the program then replaces slices;
   * it also runs with two, and leaves the input as it is. Else it is 0. Called after all outputs
   * are marked. Absent: calls always bind two. Since version 4. */
  npu_status (*add_state)(npu_builder* builder, npu_tensor input, npu_tensor output,
                          int32_t* shared);
} npu_build_api;

/* ---- Run ------------------------------------------------------------------------------------ */

/*! \brief An open device. */
typedef struct npu_device npu_device;
/*! \brief A loaded program. */
typedef struct npu_program npu_program;
/*! \brief One execution of a program, with the memory that it needs; reusable, one at a time. */
typedef struct npu_request npu_request;

/*! \brief Memory of a device that holds the value of a state. */
typedef struct npu_state npu_state;

/*! \brief Memory of the caller that a program reads or writes: dense and row-major, aligned to its
 *  elements. The driver checks all of it against the program, because bytes may come from
 *  anywhere. */
typedef struct npu_buffer {
  uint32_t size;
  npu_dtype dtype;
  int32_t rank;
  /*! \brief Sizes, without symbols; lives only during the call. */
  const int64_t* dims;
  /*! \brief The elements; those of an input are not written, but for a state that shares the buffer
   *  of its output (add_state). */
  void* data;
  /*! \brief How many bytes there are. */
  size_t bytes;
  /*! \brief Where the elements are if `data` is NULL: memory of the program's device. Only for
   *  drivers with allocate_state; NULL elsewhere. Since version 4. */
  npu_state* state;
} npu_buffer;

/*! \brief The run half. A board needs no other. */
typedef struct npu_run_api {
  /*! \brief sizeof(npu_run_api) and NPU_DRIVER_API_VERSION, as the driver was compiled. */
  uint32_t size;
  uint32_t version;
  /*! \brief As in the build half. */
  const char* name;
  const char* release;
  const npu_counter_info* counters;
  size_t counter_count;
  npu_cancel_kind cancels;

  /*! \brief A sentence about the last failure on this thread. Absent, or NULL: no reason is given.
   */
  const char* (*error)(void);
  /*! \brief How many devices there are. Absent: one. */
  npu_status (*count_devices)(int32_t* count);
  /*! \brief Opens device `index`, counted from 0. Absent: nothing to open, `load` gets NULL. */
  npu_status (*open)(int32_t index, npu_device** device);
  /*! \brief Accepts NULL. The device's programs have been unloaded before. Absent: nothing to
   *  close. */
  void (*close)(npu_device* device);
  /*! \brief Checks the bytes; corrupt ones are NPU_INVALID, never a crash. They are aligned to 64
   *  bytes, do not change, and live until the program is unloaded: a driver need not copy them. */
  npu_status (*load)(npu_device* device, const uint8_t* bytes, size_t size, npu_program** program);
  /*! \brief Accepts NULL. The program's requests have been destroyed before. Absent: nothing to
   *  free. */
  void (*unload)(npu_program* program);
  /*! \brief A text for people that says what the program does, and with which memory; valid until
   *  the program is unloaded. Absent: "". */
  npu_status (*describe)(npu_program* program, const char** text);
  npu_status (*create_request)(npu_program* program, npu_request** request);
  /*! \brief Accepts NULL. Cancels a running request and waits for it. Absent: nothing to
   *  free. */
  void (*destroy_request)(npu_request* request);
  /*! \brief Sets input `index`; symbols take their values from its shape. */
  npu_status (*bind_input)(npu_request* request, size_t index, const npu_buffer* buffer);
  /*! \brief Sets output `index`. Its buffer does not overlap with any other of the request, unless
   * it is that of the input that add_state has named with it. The shape is checked at the latest
   * when the request is executed or submitted. */
  npu_status (*bind_output)(npu_request* request, size_t index, const npu_buffer* buffer);
  /*! \brief Does the work and returns when it is done. Here and in `submit`, a request that lacks a
   *  buffer is refused: an artifact may be forged. Absent: submit and wait. */
  npu_status (*execute)(npu_request* request);
  /*! \brief Starts the work and returns. Until `wait` has returned anything but NPU_TIMEOUT,
   *  bound buffers live, and the request is neither bound nor submitted. Absent: the work is
   *  executed, and done when this would return. */
  npu_status (*submit)(npu_request* request);
  /*! \brief Waits until the work is done and returns its status, or NPU_TIMEOUT after `timeout_us`
   *  microseconds (negative: never). After each successful submit, it is called until the work is
   *  done. A driver has both submit and wait, or neither. */
  npu_status (*wait)(npu_request* request, int64_t timeout_us);
  /*! \brief Asks to end submitted work; `wait` then returns NPU_CANCELLED, or the status of work
   *  that was done before. May be called from a different thread than `wait`. Absent: the engine
   *  waits for the work. */
  npu_status (*cancel)(npu_request* request);
  /*! \brief Writes `counter_count` values, in the order of `counters`: what the request did since
   *  it was created. Not while it runs. Absent: no counters. */
  npu_status (*read_counters)(const npu_request* request, uint64_t* values);
  /*! \brief As in the build half. */
  const void* (*extension)(const char* name);
  /*! \brief The unit of the times of events, e.g. "cycles" or "ns"; NULL: there are no events.
   * Since version 3. */
  const char* event_unit;
  /*! \brief Tells whether the next executions of a request record events. Absent: the driver need
   *  not know. Since version 3. */
  npu_status (*record_events)(npu_request* request, int32_t on);
  /*! \brief The events of the last execution, in the order in which they began, and how many
   *  event_units a microsecond has (0: not known); valid until the request is bound, run or
   *  destroyed. Called after an execution that succeeded, if a profile was requested. Absent:
   *  there are no events. Since version 3. */
  npu_status (*read_events)(npu_request* request, const npu_event** events, size_t* count,
                            double* units_per_microsecond);
  /*! \brief The allocations of the last execution in memories; called after read_events, and valid
   *  as long as its events. Absent: it is not known. Since version 3. */
  npu_status (*read_allocations)(npu_request* request, const npu_allocation** allocations,
                                 size_t* count);
  /*! \brief The device's peak rates for the program of the request: operations per event_unit for
   *  its element types (0: not known), and its memories; called after read_events, and valid as
   *  long as its events. Absent: it is not known. Since version 3. */
  npu_status (*read_peaks)(npu_request* request, double* operations_per_unit,
                           const npu_memory** memories, size_t* count);
  /*! \brief Allocates memory of a device for a state of so many bytes, of which nothing is known
   *  until it is written. A session keeps the state there from call to call, and binds it by
   *  npu_buffer.state: one memory to the input and the output that add_state shares, else two.
   *  NPU_DECLINED: this state stays on the host; another failure is one of the call. Absent, like
   * the next three functions: all do. Since version 4. */
  npu_status (*allocate_state)(npu_device* device, size_t bytes, npu_state** state);
  /*! \brief Frees it, before its device is closed. Accepts NULL. */
  void (*free_state)(npu_state* state);
  /*! \brief Copies all of a state from memory of the host. No request uses it meanwhile. */
  npu_status (*write_state)(npu_state* state, const void* data, size_t bytes);
  /*! \brief Copies all of a state to memory of the host. No request writes it meanwhile. */
  npu_status (*read_state)(npu_state* state, void* data, size_t bytes);
} npu_run_api;

/* ---- Extensions that the engine knows ------------------------------------------------------- */

/*! \brief The name of npu_faults, an extension of the run half: failures on demand, for tests. */
#define NPU_FAULTS "npu.faults"

typedef struct npu_faults {
  uint32_t size;
  /*!
   * \brief Makes calls of the run half fail, in this process and on any thread.
   * \param call The function: "load", "create_request", "execute", "submit", "wait",
   *  "allocate_state", "write_state" or "read_state".
   * \param status What it returns. A wait first waits, unless this is NPU_TIMEOUT.
   * \param count How many calls fail from now on; 0 ends it.
   * \return NPU_INVALID where there is no such function or status.
   */
  npu_status (*fail_next)(const char* call, npu_status status, int32_t count);
} npu_faults;

/* ---- Entry points --------------------------------------------------------------------------- */

#if defined(_WIN32)
#define NPU_EXPORT __declspec(dllexport)
#else
#define NPU_EXPORT __attribute__((visibility("default")))
#endif

/*! \brief The build half; its library is loaded where models are compiled, not on a board.
 *  `engine_version` is the NPU_DRIVER_API_VERSION of the engine: a newer driver that cannot work
 * with it returns NULL. */
NPU_EXPORT const npu_build_api* npu_driver_build(uint32_t engine_version);
/*! \brief The run half. */
NPU_EXPORT const npu_run_api* npu_driver_run(uint32_t engine_version);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // NPU_DRIVER_H_
