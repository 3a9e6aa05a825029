// SPDX-License-Identifier: Apache-2.0
/*!
 * \file conversion.h
 * \brief Conversion between element types.
 */
#ifndef LOWERINGS_CONVERSION_H_
#define LOWERINGS_CONVERSION_H_

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief The elements of `data`, to be stored as `dtype`. Floats are truncated to integers; the
 *  vector engine alone would round. */
inline Value Convert(VectorBuilder& v, const Tensor& data, npu_dtype dtype) {
  Value value = v.Load(data);
  bool cut = IsFloat(data.desc.dtype) && !IsFloat(dtype) && dtype != NPU_BOOL;
  return cut ? v.Truncate(value) : value;
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_CONVERSION_H_
