// SPDX-License-Identifier: Apache-2.0
/*!
 * \file tensor.cc
 * \brief Shapes, some of which are known only at the call.
 */
#include "tensor.h"

namespace npu::emulator {
namespace {

std::string ToString(const Dim& dim, const std::vector<Symbol>& symbols) {
  if (dim.symbol < 0) return Join(dim.size);
  const Symbol& symbol = symbols[dim.symbol];
  std::string whole = dim.size == 1 ? symbol.name : Join(dim.size, "*", symbol.name);
  bool is_whole = dim.begin == 0 && dim.limit / dim.size >= symbol.bound;
  return is_whole ? whole : Join(whole, "{", dim.begin, "..", dim.begin + dim.limit, "}");
}

}  // namespace

const char* Name(npu_dtype dtype) {
  static const char* const names[] = {"float32", "float16", "int8", "uint8",
                                      "int32",   "int64",   "bool", "int16"};
  return names[dtype];
}

int64_t MostBytes(const Desc& desc) {
  auto bytes = static_cast<int64_t>(ElementSize(desc.dtype));
  for (int32_t d = 0; d < desc.rank; ++d) bytes *= desc.dims[d].Most();
  return bytes;
}

TensorView Resolve(const Desc& desc, const int64_t* symbols) {
  TensorView view;
  view.dtype = desc.dtype;
  view.rank = desc.rank;
  for (int32_t d = 0; d < desc.rank; ++d) view.dims[d] = desc.dims[d].Extent(symbols);
  return view;
}

std::string ToString(const Desc& desc, const std::vector<Symbol>& symbols) {
  std::string text = Join(Name(desc.dtype), " [");
  for (int32_t d = 0; d < desc.rank; ++d) {
    text += (d > 0 ? ", " : "") + ToString(desc.dims[d], symbols);
  }
  return text + "]";
}

}  // namespace npu::emulator
