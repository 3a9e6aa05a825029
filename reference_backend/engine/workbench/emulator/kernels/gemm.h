// SPDX-License-Identifier: Apache-2.0
/*!
 * \file gemm.h
 * \brief Matrix products, the core of matmul and convolution.
 */
#ifndef EMULATOR_KERNELS_GEMM_H_
#define EMULATOR_KERNELS_GEMM_H_

#include <cstdint>

#include "evaluator.h"
#include "internal.h"

namespace npu::emulator {

/*! \brief Weights of integers, in packed panels of columns. */
struct Weights {
  const char* panels = nullptr;
  npu_dtype dtype = NPU_INT8;
  int32_t bits = 8;
  int64_t depth = 0, columns = 0;
  float zero_point = 0;
  /*! \brief Elements of the depth that share scales; there are some if this is not 0. */
  int64_t block = 0;
  const float* scales = nullptr;
  const void* zero_points = nullptr;
};

/*! \brief The real numbers of rows [k, k + rows) of a panel. */
void Weigh(const Weights& weights, int64_t column, int64_t k, int64_t rows, float* out);
/*! \brief The product of these rows and one row of the left operand, as Simd::gemm does it. */
void MultiplyRow(const Weights& weights, int64_t column, int64_t k, int64_t rows, const float* a,
                 float* tile, bool accumulate);

/*! \brief The values in panels; see simd.h. */
enum class Values { kReals, kPairs, kQuads };

/*! \brief A matrix product, of real numbers, pairs or quads. Its left operand is packed;
 *  the right one is packed too, or its panels are gathered from data where they are needed. */
struct Gemm {
  /*! \brief Row panels. */
  const float* left = nullptr;
  /*! \brief If not 0: rows of a part of `left`, and the floats from one part to the next. */
  int64_t left_part = 0, left_pitch = 0;
  /*! \brief Column panels; null: gathered. */
  const float* right = nullptr;
  /*! \brief Row k of the right operand begins at data + offsets[k]. */
  const float* data = nullptr;
  const int64_t* offsets = nullptr;
  /*! \brief Column panels of pairs of unconverted 8-bit elements. */
  const char* narrow = nullptr;
  /*! \brief Whether `narrow` is halved; see Halve. */
  bool halved = false;
  /*! \brief The rows of a right operand of unconverted 8-bit elements. */
  const char* elements = nullptr;
  /*! \brief The elements of the depth of `narrow` and `elements`. */
  int64_t element_rows = 0;
  /*! \brief The right operand, if it is not null. */
  const Weights* weights = nullptr;
  npu_dtype dtype = NPU_FLOAT32;
  int32_t zero_point = 0;
  /*! \brief For quads: the left operand's zero point, and the addends of its rows. */
  int32_t left_zero = 0;
  const int32_t* of_rows = nullptr;
  /*! \brief Where the result begins in the output as a matrix. */
  int64_t out_row = 0;
};

/*! \brief Where the columns of a gathered operand lie in its rows: they are the positions of a
 *  volume, whose last dimension is contiguous. */
struct GatheredColumns {
  /*! \brief Sizes of the last two dimensions. */
  int64_t height = 1, width = 1;
  /*! \brief Distances in the first two. */
  int64_t depth_stride = 0, height_stride = 0;
  /*! \brief If not 0: all columns lie side by side, and rows are this far apart. */
  int64_t row_stride = 0;
  /*! \brief Nothing after the last element may be read. */
  bool exact = false;
};

/*! \brief The division of matrix products of one size into tasks. */
class GemmPlan {
 public:
  GemmPlan() = default;
  /*! \brief Plans for loops over `products` products, whose results need `registers` registers.
   *  `copies`: panels of the right operand are made where they are needed. */
  GemmPlan(int64_t rows, int64_t columns, int64_t depth, int64_t products,
           const GatheredColumns* gathered, bool copies, Values values, int64_t registers,
           int threads, Scratch* scratch);

  /*! \brief Tasks of one product. */
  int64_t tasks() const { return row_blocks_ * column_blocks_; }
  /*! \brief Multiplications of one task. */
  int64_t cost() const { return row_block_ * column_block_ * depth_; }
  void Run(const Gemm& gemm, const TileStore& store, int64_t task, int worker) const;

 private:
  struct Panel {
    const float* data;
    int64_t stride;
  };
  Panel RightPanel(const Simd& simd, const Gemm& gemm, int64_t column, int64_t k, int64_t depth,
                   float* packed) const;

  int64_t rows_ = 0, columns_ = 0, depth_ = 0;
  GatheredColumns gathered_;
  Values values_ = Values::kReals;
  int64_t row_block_ = 0, column_block_ = 0, depth_block_ = 0;
  int64_t row_blocks_ = 0, column_blocks_ = 0;
  // Panels of columns that are multiplied by a tile of rows after each other.
  int64_t joined_ = 1;
  int64_t panel_floats_ = 0, tile_floats_ = 0, registers_ = 0, worker_floats_ = 0;
  float* workers_ = nullptr;
};

/*! \brief One operand of a matrix product in memory. */
struct PanelSource {
  const void* data;
  npu_dtype dtype;
  /*! \brief Rows of a left operand, columns of a right one. */
  int64_t lines;
  int64_t depth;
  /*! \brief Whether the elements of a line are contiguous, or those of a step of the depth. */
  bool lines_dense;
  /*! \brief Of integers. */
  int32_t zero_point = 0;
};

/*! \brief An operand of a matmul. */
PanelSource SourceOf(const TensorView& tensor, bool transposed, bool left, int32_t zero_point = 0);
/*! \brief One of several operands of the same shape that follow each other. */
PanelSource MatrixOf(const PanelSource& source, int64_t index);

/*! \brief Calls `body(matrix, panel of it, panel of all)` for the panels of `count` operands. */
template <typename Body>
void ForEachPanel(const PanelSource& source, int64_t count, int width, const KernelContext& context,
                  const Body& body) {
  const int64_t each = CeilDivide(source.lines, width);
  Parallel(context, count * each, Grain(source.depth * width),
           [&](int64_t begin, int64_t end, int) {
             for (int64_t i = begin; i < end; ++i) body(MatrixOf(source, i / each), i % each, i);
           });
}

/*! \brief Calls `body(product, index of a, index of b, task, worker)` for the tasks of all products
 *  of a matmul's plan. */
template <typename Plan, typename Body>
void ForEachProduct(const MatMulArgs& args, const Plan& plan, const KernelContext& context,
                    const Body& body) {
  const int64_t tasks = plan.gemm.tasks();
  auto run = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / tasks;
      const int64_t a_index = plan.collapsed ? 0 : BatchIndex(args.a, args.out, batch);
      const int64_t b_index = plan.collapsed ? 0 : BatchIndex(args.b, args.out, batch);
      Gemm gemm;
      gemm.left = plan.a_panels + a_index * plan.a_floats;
      gemm.out_row = batch * plan.a.lines;
      body(gemm, a_index, b_index, i % tasks, worker);
    }
  };
  Parallel(context, plan.batch * tasks, Grain(plan.gemm.cost()), run);
}

/*! \brief Floats of the panels of an operand. */
int64_t PanelFloats(int64_t lines, int64_t depth, int width);
/*! \brief Packs the panels of `count` operands, of `width` lines each. */
void PackPanels(const PanelSource& source, int64_t count, int width, const KernelContext& context,
                float* panels);

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_GEMM_H_
