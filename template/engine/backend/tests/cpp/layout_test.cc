// SPDX-License-Identifier: Apache-2.0
/*!
 * \file layout_test.cc
 * \brief The order of a view's dimensions, blocks, and permuted elements, against an enumeration.
 */
#include "codegen/layout.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "check.h"
#include "common/permute.h"

namespace npu {
namespace {

Dims Fixed(const std::vector<int64_t>& sizes) {
  Dims dims;
  for (int64_t size : sizes) dims.push_back(npu_dim{size, -1});
  return dims;
}

/*! \brief The elements 0, 1, 2, ... of a shape as they are stored in an order. */
std::vector<uint32_t> StoredNumbers(const std::vector<int64_t>& sizes, const Order& order) {
  std::vector<int64_t> steps(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) steps[i - 1] = steps[i] * sizes[i];
  std::vector<uint32_t> numbers = {0};
  for (int dim : order) {
    std::vector<uint32_t> next;
    for (uint32_t number : numbers) {
      for (int64_t i = 0; i < sizes[dim]; ++i) {
        next.push_back(number + static_cast<uint32_t>(i * steps[dim]));
      }
    }
    numbers = next;
  }
  return numbers;
}

template <typename T>
void CheckPermuted(const std::vector<int64_t>& sizes, const Order& order) {
  std::vector<T> from, to, expected;
  for (uint32_t number : StoredNumbers(sizes, order)) expected.push_back(static_cast<T>(number));
  for (size_t i = 0; i < expected.size(); ++i) from.push_back(static_cast<T>(i));
  to.resize(from.size());
  Permute(sizes.data(), order, sizeof(T), from.data(), to.data());
  CHECK(to == expected);
  std::vector<T> back(to.size());
  const std::vector<int64_t> stored = Reordered(sizes.data(), order);
  Permute(stored.data(), Inverse(order), sizeof(T), to.data(), back.data());
  CHECK(back == from);
  if (!from.empty()) CHECK(KeepsPlaces(sizes.data(), order) == (expected == from));
}

TEST(PermutesElements) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{2, 3, 4, 5}, {3, 1, 2, 1}, {1, 1, 1, 1}, {2, 0, 3, 1}}) {
    Order order = {0, 1, 2, 3};
    do {
      CHECK(IsPermutation(order));
      CheckPermuted<uint8_t>(sizes, order);
      CheckPermuted<uint16_t>(sizes, order);
      CheckPermuted<uint32_t>(sizes, order);
      CheckPermuted<uint64_t>(sizes, order);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  CheckPermuted<uint32_t>({}, {});
  for (const Order& order : {Order{0, 0}, {0, 2}, {-1, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
    CHECK(!IsPermutation(order));
  }
}

/*! \brief Every order of a view that has the elements in the same places, and no other, is found.
 */
void CheckViews(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  Order order(from.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    const std::vector<uint32_t> places = StoredNumbers(from, order);
    const std::optional<Order> found = OrderOfView(Fixed(from), order, Fixed(to));
    if (found.has_value()) CHECK(StoredNumbers(to, *found) == places);
    bool exists = false;
    Order candidate(to.size());
    std::iota(candidate.begin(), candidate.end(), 0);
    do {
      exists = exists || StoredNumbers(to, candidate) == places;
    } while (std::next_permutation(candidate.begin(), candidate.end()));
    CHECK(exists == found.has_value());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(FindsTheOrderOfAView) {
  CheckViews({2, 6, 3, 4}, {2, 6, 12});
  CheckViews({2, 6, 3, 4}, {2, 2, 3, 3, 4});
  CheckViews({2, 6, 1, 1}, {2, 6});
  CheckViews({2, 6}, {2, 6, 1, 1});
  CheckViews({2, 3, 4}, {24});
  CheckViews({24}, {2, 3, 4});
  CheckViews({2, 1, 5}, {1, 2, 5, 1});
  CheckViews({1, 1}, {1});
  // Sizes known at the call: [4 * n, 3] is [n, 4, 3], and [4, n, 3] too, each in its own order.
  const npu_dim n = {1, 0}, many = {4, 0}, three = {3, -1}, four = {4, -1};
  CHECK(OrderOfView({many, three}, {1, 0}, {n, four, three}) == (Order{2, 0, 1}));
  CHECK(OrderOfView({many, three}, {1, 0}, {four, n, three}) == (Order{2, 0, 1}));
  CHECK(!OrderOfView({n, four, three}, {1, 0, 2}, {many, three}).has_value());
  // Without common factors only the row-major order is known.
  CHECK(OrderOfView(Fixed({4, 6}), {0, 1}, Fixed({6, 4})) == (Order{0, 1}));
  CHECK(!OrderOfView(Fixed({4, 6}), {1, 0}, Fixed({6, 4})).has_value());
}

TEST(SplitsDimensionsIntoBlocks) {
  const npu_dim n = {2, 0};
  const Dims dims = {n, {12, -1}, {1, -1}, {5, -1}};
  const Blocks blocks = {1, 4, 4, 1};
  CHECK(CanSplit(dims, blocks));
  CHECK(IsSame(Split(dims, blocks), Dims{n, {3, -1}, {4, -1}, {1, -1}, {1, -1}, {5, -1}}));
  CHECK(SplitPlaces(blocks, 4) == (std::vector<int>{0, 1, 3, 5, 6}));
  CHECK(SplitOrder({0, 2, 3, 1}, blocks) == (Order{0, 3, 4, 5, 1, 2}));
  CHECK(SplitOrder({3, 1}, blocks) == (Order{5, 1, 2}));
  CHECK(IsSame(Split(dims, {}), dims));
  CHECK(SplitPlaces({}, 2) == (std::vector<int>{0, 1, 2}));
  CHECK(SplitOrder({1, 0}, {}) == (Order{1, 0}));
  CHECK(OrNone({1, 1}).empty() && OrNone({1, 2}) == (Blocks{1, 2}));
  CHECK(!CanSplit(dims, {1, 5, 1, 1}));  // It does not divide 12.
  CHECK(!CanSplit(dims, {2, 1, 1, 1}));  // The size is known at the call.
  CHECK(!CanSplit(dims, {1, 4, 1}));     // Another rank.
  CHECK(!CanSplit(Fixed({0}), {4}));
}

TEST(SizesForTheRuntime) {
  const npu_dim n = {2, 0};
  const auto sizes = [](const Dims& dims) { return PortSizes(DescOf(NPU_FLOAT32, dims)); };
  CHECK(sizes({n, {3, -1}}) == (std::vector<int64_t>{-1, 3}));
  CHECK(sizes({{2, -1}, {3, -1}}) == (std::vector<int64_t>{2, 3}));
  CHECK(!sizes({n, n}).has_value());
  CHECK(!sizes({n, {0, -1}}).has_value());
}

}  // namespace
}  // namespace npu

int main(int count, char** arguments) { return check::RunTests(count, arguments); }
