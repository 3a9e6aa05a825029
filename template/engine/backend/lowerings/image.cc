// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

/*! \brief How one spatial dimension is resized. */
struct ResizedAxis {
  int axis = 0;
  int64_t in = 0, out = 0;
  /*! \brief The part of the input that is resized, where the attributes name one. */
  double begin = 0, end = 1;
};

ResizedAxis ReadAxis(const Lowering& op, int spatial) {
  ResizedAxis axis;
  axis.axis = spatial + (op.String("layout") == "NCHW" ? 2 : 1);
  axis.in = op.FixedSize(op.Input(0), axis.axis);
  axis.out = op.Ints("size").at(spatial);
  const std::vector<double> region = op.Floats("roi");
  if (region.size() == 4) {
    axis.begin = region[spatial];
    axis.end = region[2 + spatial];
  }
  return axis;
}

/*! \brief Where element `i` of the output lies in the input. */
template <typename T>
T Position(const Lowering& op, const ResizedAxis& axis, int64_t i) {
  const std::string mode = op.String("coordinate_transformation_mode");
  const T x = static_cast<T>(i), half = static_cast<T>(0.5);
  const T scale = static_cast<T>(axis.in) / static_cast<T>(axis.out);
  if (mode == "pytorch_half_pixel" && axis.out == 1) return 0;
  if (mode == "half_pixel" || mode == "pytorch_half_pixel") return (x + half) * scale - half;
  if (mode == "tf_half_pixel_for_nn") return (x + half) * scale;
  if (mode == "asymmetric") return x * scale;
  const T last = static_cast<T>(axis.in - 1);
  const T gaps = static_cast<T>(std::max<int64_t>(axis.out - 1, 1));
  if (mode == "align_corners") return last / gaps * x;
  if (mode != "tf_crop_and_resize") {
    op.Refuse("its attribute 'coordinate_transformation_mode' is '" + mode + "'");
  }
  const T begin = static_cast<T>(axis.begin), end = static_cast<T>(axis.end);
  if (axis.out == 1) return half * (begin + end) * last;
  return begin * last + x * (end - begin) * last / gaps;
}

/*! \brief How the nearest element is found. */
std::string Rounding(const Lowering& op) {
  std::string rounding = op.String("rounding_method");
  if (!rounding.empty()) return rounding;
  return op.String("coordinate_transformation_mode") == "align_corners" ? "round" : "floor";
}

/*! \brief The index of the element nearest to element `i` of the output. In float32 and in the
 *  order of TVM's own kernels, since the last bit decides. */
int64_t Nearest(const Lowering& op, const ResizedAxis& axis, int64_t i) {
  const std::string mode = op.String("coordinate_transformation_mode");
  const std::string rounding = Rounding(op);
  if (rounding == "floor" && mode == "asymmetric" && axis.out % axis.in == 0) {
    return i / (axis.out / axis.in);
  }
  const float x = Position<float>(op, axis, i);
  const float tiny = 1e-5f;  // Rounding may have changed whole numbers.
  if (rounding == "round") return static_cast<int64_t>(std::nearbyint(x));
  if (rounding == "round_prefer_floor") return static_cast<int64_t>(std::ceil(x - 0.5f));
  if (rounding == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5f));
  if (rounding == "floor") return static_cast<int64_t>(std::floor(x + tiny));
  if (rounding == "ceil") return static_cast<int64_t>(std::ceil(x - tiny));
  op.Refuse("its attribute 'rounding_method' is '" + rounding + "'");
}

Tensor ResizeToNearest(Lowering& op, const Tensor& data, const ResizedAxis& axis) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < axis.out; ++i) {
    indices.push_back(std::clamp<int64_t>(Nearest(op, axis, i), 0, axis.in - 1));
  }
  std::vector<npu_dim> dims = data.dims();
  dims[axis.axis] = FixedDim(axis.out);
  const Tensor out = op.Temporary(data.desc.dtype, dims);
  op.Gather(data, op.Constant({FixedDim(axis.out)}, indices), axis.axis, out);
  return out;
}

/*! \brief How much each element of the output takes from each element of the input, row by row. */
std::vector<float> InterpolationMatrix(const Lowering& op, const ResizedAxis& axis) {
  const bool cubic = op.String("method") == "cubic";
  const double alpha = op.Float("cubic_alpha");
  const bool exclude_outside = op.Int("cubic_exclude") != 0;
  std::vector<float> matrix(axis.out * axis.in);
  for (int64_t row = 0; row < axis.out; ++row) {
    const double position = Position<double>(op, axis, row);
    int64_t first = static_cast<int64_t>(std::floor(position));
    const double t = position - std::floor(position);
    std::vector<double> weights = {1 - t, t};
    if (cubic) {
      first -= 1;
      const double t2 = t * t, t3 = t * t * t;
      weights = {alpha * (t3 - 2 * t2 + t), (alpha + 2) * t3 - (alpha + 3) * t2 + 1,
                 -(alpha + 2) * t3 + (2 * alpha + 3) * t2 - alpha * t, alpha * (t2 - t3)};
    }
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t at = first + static_cast<int64_t>(i);
      if (cubic && exclude_outside && (at < 0 || at >= axis.in)) weights[i] = 0;
      sum += weights[i];
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t at = std::clamp<int64_t>(first + static_cast<int64_t>(i), 0, axis.in - 1);
      matrix[row * axis.in + at] += static_cast<float>(weights[i] / sum);
    }
  }
  return matrix;
}

/*! \brief Interpolates along an axis by a product with a matrix of constants. */
Tensor Interpolate(Lowering& op, const Tensor& data, const ResizedAxis& axis, npu_dtype dtype) {
  std::vector<npu_dim> dims = data.dims();
  const auto at = dims.begin() + axis.axis;
  const npu_dim before = op.Joined({dims.begin(), at});
  const npu_dim behind = op.Joined({at + 1, dims.end()});
  const npu_dim in = FixedDim(axis.in), out = FixedDim(axis.out);
  const Tensor matrix = op.Constant({out, in}, InterpolationMatrix(op, axis));
  *at = out;
  npu_matmul product = {};
  Tensor result;
  if (axis.axis + 1 == data.rank()) {
    result = op.Temporary(dtype, {before, out});
    product.a = op.View(data, {before, in}).id;
    product.b = matrix.id;
    product.transpose_b = 1;
  } else {
    result = op.Temporary(dtype, {before, out, behind});
    product.a = matrix.id;
    product.b = op.View(data, {before, in, behind}).id;
  }
  product.out = result.id;
  op.Emit(product);
  return op.View(result, dims);
}

/*! \brief The place of a word in a list; refuses others. */
int32_t PlaceOf(const Lowering& op, const std::string& attribute, const std::string& word,
                const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) op.Refuse("its attribute '" + attribute + "' is '" + word + "'");
  return static_cast<int32_t>(found - words.begin());
}

/*! \brief Emits a resize as one operation. */
void EmitResize(Lowering& op, const ResizedAxis& height, const ResizedAxis& width) {
  const std::string method = op.String("method");
  const std::string position = op.String("coordinate_transformation_mode");
  npu_resize resize = {};
  resize.data = op.Input(0).id;
  resize.out = op.Output().id;
  resize.axes[0] = height.axis;
  resize.axes[1] = width.axis;
  resize.kind = static_cast<npu_resize_kind>(
      PlaceOf(op, "method", method, {"nearest_neighbor", "linear", "cubic"}));
  resize.position = static_cast<npu_resize_position>(PlaceOf(
      op, "coordinate_transformation_mode", position,
      {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn"}));
  if (resize.kind == NPU_RESIZE_NEAREST) {
    resize.rounding = static_cast<npu_resize_rounding>(
        PlaceOf(op, "rounding_method", Rounding(op),
                {"floor", "ceil", "round_prefer_floor", "round_prefer_ceil", "round"}));
  } else if (resize.kind == NPU_RESIZE_CUBIC) {
    resize.cubic_alpha = op.Float("cubic_alpha");
    resize.cubic_exclude = op.Int("cubic_exclude") != 0 ? 1 : 0;
  }
  op.Emit(resize);
}

void Resize2D(Lowering& op) {
  op.RequireOneOf("layout", {"NCHW", "NHWC"});
  op.RequireOneOf("method", {"nearest_neighbor", "linear", "cubic"});
  const Tensor data = op.Input(0);
  const npu_dtype dtype = data.desc.dtype;
  const ResizedAxis height = ReadAxis(op, 0), width = ReadAxis(op, 1);
  const bool crops = op.String("coordinate_transformation_mode") == "tf_crop_and_resize";
  if (!crops && op.Has(&npu_build_api::add_resize)) return EmitResize(op, height, width);
  Tensor result;
  if (op.String("method") == "nearest_neighbor") {
    result = ResizeToNearest(op, ResizeToNearest(op, data, height), width);
  } else {
    // Intermediate values stay in float32.
    Tensor wide = data;
    if (dtype != NPU_FLOAT32) {
      wide = op.Temporary(NPU_FLOAT32, data.dims());
      op.Elementwise(wide, [&](VectorBuilder& v) { return v.Load(data); });
    }
    // Integers that stand for real numbers have no scale in between.
    const npu_dtype last = op.ReadsScales() ? NPU_FLOAT32 : dtype;
    result = Interpolate(op, Interpolate(op, wide, height, NPU_FLOAT32), width, last);
  }
  if (crops) {
    // Positions outside the image have a special value.
    const auto lies_inside = [&op](const ResizedAxis& axis, int64_t i) {
      const double position = Position<double>(op, axis, i);
      return 0 <= position && position <= static_cast<double>(axis.in - 1);
    };
    std::vector<float> inside;
    for (int64_t y = 0; y < height.out; ++y) {
      for (int64_t x = 0; x < width.out; ++x) {
        inside.push_back(lies_inside(height, y) && lies_inside(width, x) ? 1.0f : 0.0f);
      }
    }
    std::vector<npu_dim> dims = {FixedDim(height.out), FixedDim(width.out)};
    if (op.String("layout") == "NHWC") dims.push_back(FixedDim(1));
    const Tensor mask = op.Constant(dims, inside);
    op.Elementwise(op.Output(), [&](VectorBuilder& v) {
      return v.Select(v.Load(mask), v.Load(result), v.Constant(op.Float("extrapolation_value")));
    });
  } else if (result.desc.dtype != op.OutputDtype()) {
    op.Elementwise(op.Output(), [&](VectorBuilder& v) { return v.Load(result); });
  } else {
    op.SetOutput(0, result);
  }
}

REGISTER_LOWERING("relax.image.resize2d", Resize2D);

}  // namespace
}  // namespace npu
