// SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <algorithm>
#include <numeric>

namespace npu {
namespace {

bool IsOne(const npu_dim& dim) { return IsSame(dim, npu_dim{1, -1}); }

/*! \brief Two shapes of the same elements, each dimension as a product of numbered factors; in
 *  row-major order, the factors of both are 0, 1, 2, ... */
struct SharedFactors {
  std::vector<std::vector<int>> of_a, of_b;
};

std::optional<SharedFactors> Factorize(const Dims& a, const Dims& b) {
  SharedFactors factors;
  npu_dim left = {1, -1}, right = {1, -1};
  const auto divides = [](const npu_dim& x, const npu_dim& y) {
    return x.size != 0 && y.size % x.size == 0 && (x.symbol < 0 || x.symbol == y.symbol);
  };
  const auto quotient = [](const npu_dim& y, const npu_dim& x) {
    return npu_dim{y.size / x.size, x.symbol < 0 ? y.symbol : -1};
  };
  for (int factor = 0;; ++factor) {
    while (IsOne(left) && factors.of_a.size() < a.size()) {
      left = a[factors.of_a.size()];
      factors.of_a.emplace_back();
    }
    while (IsOne(right) && factors.of_b.size() < b.size()) {
      right = b[factors.of_b.size()];
      factors.of_b.emplace_back();
    }
    if (IsOne(left) && IsOne(right)) return factors;
    if (IsOne(left) || IsOne(right)) return std::nullopt;
    factors.of_a.back().push_back(factor);
    factors.of_b.back().push_back(factor);
    const npu_dim x = left, y = right;
    if (!divides(x, y) && !divides(y, x)) return std::nullopt;
    left = divides(x, y) ? npu_dim{1, -1} : quotient(x, y);
    right = divides(x, y) ? quotient(y, x) : npu_dim{1, -1};
  }
}

std::vector<int> Sequence(const std::vector<std::vector<int>>& factors, const Order& order) {
  std::vector<int> sequence;
  for (int dim : order) sequence.insert(sequence.end(), factors[dim].begin(), factors[dim].end());
  return sequence;
}

}  // namespace

Order Identity(int rank) {
  Order order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

bool IsIdentity(const Order& order) { return std::is_sorted(order.begin(), order.end()); }

Order Composed(const Order& a, const Order& b) { return Reordered(a.data(), b); }

std::string Text(const Order& order) {
  std::string text;
  for (int dim : order) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "(" + text + ")";
}

bool IsSame(const npu_dim& a, const npu_dim& b) { return a.size == b.size && a.symbol == b.symbol; }

bool IsSame(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const npu_dim& x, const npu_dim& y) { return IsSame(x, y); });
}

npu_tensor_desc DescOf(npu_dtype dtype, const Dims& dims) {
  npu_tensor_desc desc = {};
  desc.dtype = dtype;
  desc.rank = static_cast<int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), desc.dims);
  return desc;
}

npu_tensor_desc Stored(const npu_tensor_desc& desc, const Order& order) {
  return DescOf(desc.dtype, Reordered(desc.dims, order));
}

int64_t BlockOf(const Blocks& blocks, int dim) { return blocks.empty() ? 1 : blocks[dim]; }

Blocks OrNone(Blocks blocks) {
  const bool has_none =
      std::all_of(blocks.begin(), blocks.end(), [](int64_t block) { return block == 1; });
  return has_none ? Blocks() : blocks;
}

bool CanSplit(const Dims& dims, const Blocks& blocks) {
  if (blocks.empty()) return true;
  if (blocks.size() != dims.size()) return false;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (blocks[i] == 1 || IsOne(dims[i])) continue;
    if (dims[i].symbol >= 0 || dims[i].size == 0 || dims[i].size % blocks[i] != 0) return false;
  }
  return true;
}

Dims Split(const Dims& dims, const Blocks& blocks) {
  if (blocks.empty()) return dims;
  Dims result;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t block = IsOne(dims[i]) ? 1 : blocks[i];
    result.push_back({dims[i].size / block, dims[i].symbol});
    if (blocks[i] != 1) result.push_back({block, -1});
  }
  return result;
}

std::vector<int> SplitPlaces(const Blocks& blocks, int rank) {
  std::vector<int> places = {0};
  for (int i = 0; i < rank; ++i)
    places.push_back(places.back() + (BlockOf(blocks, i) == 1 ? 1 : 2));
  return places;
}

Order SplitOrder(const Order& order, const Blocks& blocks) {
  if (blocks.empty()) return order;
  const std::vector<int> places = SplitPlaces(blocks, static_cast<int>(blocks.size()));
  Order result;
  for (int dim : order) {
    for (int place = places[dim]; place < places[dim + 1]; ++place) result.push_back(place);
  }
  return result;
}

bool HasSamePlaces(const Dims& dims, const Order& a, const Order& b) {
  const auto is_one = [&](int dim) { return IsOne(dims[dim]); };
  Order x = a, y = b;
  x.erase(std::remove_if(x.begin(), x.end(), is_one), x.end());
  y.erase(std::remove_if(y.begin(), y.end(), is_one), y.end());
  return x == y;
}

std::optional<Order> OrderOfView(const Dims& from, const Order& order, const Dims& to) {
  Order identity = Identity(static_cast<int>(to.size()));
  if (IsIdentity(order)) return identity;
  const std::optional<SharedFactors> factors = Factorize(from, to);
  if (!factors.has_value()) return std::nullopt;
  const std::vector<int> sequence = Sequence(factors->of_a, order);
  if (Sequence(factors->of_b, identity) == sequence) return identity;
  // Each dimension goes where its first factor is; one without factors follows its neighbour.
  std::vector<int> places(sequence.size());
  for (size_t i = 0; i < sequence.size(); ++i) places[sequence[i]] = static_cast<int>(i);
  std::vector<int> keys;
  for (const std::vector<int>& dim : factors->of_b) {
    keys.push_back(!dim.empty() ? places[dim.front()] : keys.empty() ? -1 : keys.back());
  }
  Order result = identity;
  std::stable_sort(result.begin(), result.end(), [&](int a, int b) { return keys[a] < keys[b]; });
  if (Sequence(factors->of_b, result) != sequence) return std::nullopt;
  return result;
}

std::optional<std::vector<int64_t>> PortSizes(const npu_tensor_desc& desc) {
  std::vector<int64_t> sizes;
  int unknown = 0;
  for (int i = 0; i < desc.rank; ++i) {
    const npu_dim& dim = desc.dims[i];
    if (dim.size <= 0) return std::nullopt;
    unknown += dim.symbol >= 0 ? 1 : 0;
    sizes.push_back(dim.symbol >= 0 ? -1 : dim.size);
  }
  if (unknown > 1) return std::nullopt;
  return sizes;
}

}  // namespace npu
