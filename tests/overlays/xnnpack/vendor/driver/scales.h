// SPDX-License-Identifier: Apache-2.0
/*!
 * \file scales.h
 * \brief Scales and zero points: XNNPACK has them at tensors of integers, the kit at the nodes
 *  that quantize and dequantize.
 */
#ifndef XNNPACK_SCALES_H_
#define XNNPACK_SCALES_H_

#include "driver_kit/program.h"

/*! \brief The integers that a node quantizes to or dequantizes, or -1. */
inline int32_t IntegersOf(const npu::kit::Node& node) {
  if (node.kind == npu::kit::Kind::kQuantize) return node.out;
  return node.kind == npu::kit::Kind::kDequantize ? node.inputs[0] : -1;
}

/*! \brief The tensor whose elements a tensor of integers has: other nodes only move integers. */
inline int32_t OriginOf(const npu::kit::Program& program, int32_t value) {
  for (auto node = program.nodes.rbegin(); node != program.nodes.rend(); ++node) {
    if (node->out == value && IntegersOf(*node) < 0) value = node->inputs[0];
  }
  return value;
}

/*! \brief A node that has the scale and the zero point of a tensor of integers, or NULL. */
inline const npu::kit::Node* ScaleOf(const npu::kit::Program& program, int32_t value) {
  const int32_t origin = OriginOf(program, value);
  for (const npu::kit::Node& node : program.nodes) {
    const int32_t integers = IntegersOf(node);
    if (integers >= 0 && OriginOf(program, integers) == origin) return &node;
  }
  return nullptr;
}

#endif  // XNNPACK_SCALES_H_
