// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <cstdio>

namespace npu::emulator {

Piece::Piece(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", number);
  number_ = text;
  text_ = number_;
}

std::string Concatenate(std::initializer_list<Piece> pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text();
  return text;
}

}  // namespace npu::emulator
