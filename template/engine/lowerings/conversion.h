// SPDX-License-Identifier: Apache-2.0
/*!
 * \file conversion.h
 * \brief Elements of one type as elements of another.
 */
#ifndef OPS_CONVERSION_H_
#define OPS_CONVERSION_H_

#include "lowering.h"

namespace npu {

/*! \brief The elements of `data`, to be stored as `dtype`. Real numbers become integers by leaving
 *  out the fraction, where the vector engine by itself would round. */
inline Value Convert(VectorBuilder& v, const Tensor& data, npu_dtype dtype) {
  Value value = v.Load(data);
  bool cut = IsFloat(data.desc.dtype) && !IsFloat(dtype) && dtype != NPU_BOOL;
  return cut ? v.Truncate(value) : value;
}

}  // namespace npu

#endif  // OPS_CONVERSION_H_
