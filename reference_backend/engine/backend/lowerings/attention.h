// SPDX-License-Identifier: Apache-2.0
/*!
 * \file attention.h
 * \brief Shared code of attention with and without a bias.
 */
#ifndef LOWERINGS_ATTENTION_H_
#define LOWERINGS_ATTENTION_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief Argument `i`, [batch, sequence, heads, size], as [batch, heads / group, group, sequence,
 *  size]. */
inline Tensor HeadsFirst(Lowering& op, size_t i, int64_t group) {
  const Tensor data = op.Input(i);
  const std::vector<npu_dim> dims = data.dims();
  const int64_t heads = op.FixedSize(data, 2);
  const Tensor turned = op.Temporary(data.desc.dtype, {dims[0], dims[2], dims[1], dims[3]});
  npu_copy copy = op.CopyOf(data, turned);
  copy.permutation[1] = 2;
  copy.permutation[2] = 1;
  op.Emit(copy);
  return op.View(turned, {dims[0], FixedDim(heads / group), FixedDim(group), dims[1], dims[3]});
}

/*! \brief 1 where a query may look at a key, 0 elsewhere. */
inline Tensor CausalMask(Lowering& op, const std::string& kind) {
  const int64_t queries = op.FixedSize(op.Input(0), 1);
  const int64_t keys = op.FixedSize(op.Input(1), 1);
  const int64_t offset = kind == "BottomRight" ? keys - queries : 0;
  if (offset < 0) op.Refuse("a causal mask 'BottomRight' needs as many keys as queries");
  std::vector<float> mask;
  for (int64_t query = 0; query < queries; ++query) {
    for (int64_t key = 0; key < keys; ++key) mask.push_back(key <= query + offset ? 1.0f : 0.0f);
  }
  return op.Constant({FixedDim(queries), FixedDim(keys)}, mask);
}

/*! \brief Argument 3, which broadcasts against [batch, heads, queries, keys], in the dimensions
 *  that HeadsFirst makes. */
inline Tensor BiasByHead(Lowering& op, int64_t group) {
  const Tensor bias = op.Input(3);
  const std::vector<npu_dim> dims = bias.dims();
  const int64_t heads = op.FixedSize(bias, 1);
  const int64_t inner = heads == 1 ? 1 : group;
  return op.View(bias, {dims[0], FixedDim(heads / inner), FixedDim(inner), dims[2], dims[3]});
}

/*! \brief Lowers softmax(query * key * scale + bias, masked) * value, per head. */
inline void LowerAttention(Lowering& op, bool has_bias) {
  op.RequireOneOf("causal_mask", {"", "TopLeft", "BottomRight"});
  if (!op.IsNone("window_size")) op.Refuse("a sliding window is not supported");
  const int64_t heads = op.FixedSize(op.Input(0), 2);
  const int64_t group = heads / op.FixedSize(op.Input(1), 2);
  // Grouped queries: several query heads may share one head of keys and values.
  const Tensor query = HeadsFirst(op, 0, group);
  const Tensor key = HeadsFirst(op, 1, 1);
  const Tensor value = HeadsFirst(op, 2, 1);
  const double size = static_cast<double>(op.FixedSize(op.Input(0), 3));
  const double scale = op.IsNone("scale") ? 1 / std::sqrt(size) : op.Float("scale");
  const std::string causal = op.String("causal_mask");

  std::vector<npu_dim> dims = query.dims();
  dims[4] = key.dims()[3];
  const Tensor scores = op.Temporary(NPU_FLOAT32, dims);
  npu_matmul product = {};
  product.a = query.id;
  product.b = key.id;
  product.transpose_b = 1;
  product.out = scores.id;
  product.epilogue = op.EpilogueOf([&](VectorBuilder& v, Value score) {
    score = v.Multiply(score, v.Constant(scale));
    if (has_bias) score = v.Add(score, v.Load(BiasByHead(op, group)));
    if (causal.empty()) return score;
    return v.Select(v.Load(CausalMask(op, causal)), score,
                    v.Constant(-std::numeric_limits<double>::infinity()));
  });
  op.Emit(product);

  Tensor maximum;
  const Tensor weights = op.Exponentials(scores, 4, &maximum);
  const Tensor sum = op.Temporary(NPU_FLOAT32, maximum.dims());
  op.Reduce(NPU_REDUCE_SUM, weights, {4}, sum);

  // Rounding the weights to float16 would cost more than converting the values.
  const Tensor wide = op.Temporary(NPU_FLOAT32, value.dims());
  op.Elementwise(wide, [&](VectorBuilder& v) { return v.Load(value); });
  dims[4] = value.dims()[4];
  const Tensor result = op.Temporary(value.desc.dtype, dims);
  product = {};
  product.a = weights.id;
  product.b = wide.id;
  product.out = result.id;
  // Dividing the result instead of the weights takes fewer divisions.
  product.epilogue = op.EpilogueOf(
      [&](VectorBuilder& v, Value weighted) { return v.Divide(weighted, v.Load(sum)); });
  op.Emit(product);
  const Tensor out = op.Output();
  const std::vector<npu_dim> last = out.dims();
  const Tensor by_head = op.View(result, {last[0], last[2], last[1], last[3]});
  npu_copy copy = op.CopyOf(by_head, out);
  copy.permutation[1] = 2;
  copy.permutation[2] = 1;
  op.Emit(copy);
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_ATTENTION_H_
