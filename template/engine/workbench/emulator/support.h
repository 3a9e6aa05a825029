// SPDX-License-Identifier: Apache-2.0
/*!
 * \file support.h
 * \brief Errors and memory.
 */
#ifndef EMULATOR_SUPPORT_H_
#define EMULATOR_SUPPORT_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "npu_driver.h"

namespace npu::emulator {

/*! \brief A part of a sentence, as text. */
class Piece {
 public:
  Piece(std::string_view text) : text_(text) {}
  Piece(const std::string& text) : text_(text) {}
  Piece(const char* text) : text_(text) {}
  Piece(double number);
  template <typename Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
  Piece(Integer number) : number_(std::to_string(number)), text_(number_) {}
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  std::string_view text() const { return text_; }

 private:
  std::string number_;
  std::string_view text_;
};

/*! \brief Joins pieces. */
std::string Concatenate(std::initializer_list<Piece> pieces);

/*! \brief Joins its arguments to one string. */
template <typename... Parts>
std::string Join(const Parts&... parts) {
  return Concatenate({Piece(parts)...});
}

/*! \brief A failure on its way to the C API, which turns it into a status and a sentence. */
class Error : public std::runtime_error {
 public:
  Error(npu_status status, const std::string& sentence)
      : std::runtime_error(sentence), status(status) {}

  npu_status status;
};

/*! \brief Throws: the caller broke the contract of the driver's header. */
template <typename... Parts>
[[noreturn]] void Invalid(const Parts&... parts) {
  throw Error(NPU_INVALID, Join(parts...));
}

/*! \brief Throws: the emulated hardware does not do this. */
template <typename... Parts>
[[noreturn]] void Declined(const Parts&... parts) {
  throw Error(NPU_DECLINED, Join(parts...));
}

/*! \brief Throws if an argument of the C API is null. */
inline void RequireArgument(const void* argument, const char* name) {
  if (argument == nullptr) Invalid("The argument ", name, " is null.");
}

/*! \brief Runs a function of the C API; an exception becomes a status and a sentence. */
template <typename Body>
npu_status Guard(std::string* sentence, const Body& body) {
  try {
    body();
    return NPU_OK;
  } catch (const Error& error) {
    *sentence = error.what();
    return error.status;
  } catch (const std::bad_alloc&) {
    *sentence = "There is not enough memory.";
    return NPU_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    *sentence = Join("The emulator failed: ", error.what());
    return NPU_DEVICE_ERROR;
  }
}

/*! \brief Memory aligned for the widest vector loads. */
class Buffer {
 public:
  /*! \brief The alignment of `data`. */
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t size) : size_(size) {
    if (size > 0) {
      data_.reset(static_cast<uint8_t*>(::operator new(size, std::align_val_t(kAlignment))));
    }
  }

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(uint8_t* data) const { ::operator delete(data, std::align_val_t(kAlignment)); }
  };

  std::unique_ptr<uint8_t, Free> data_;
  size_t size_ = 0;
};

/*! \brief Rounds up to a multiple of Buffer::kAlignment. */
inline size_t Aligned(size_t size) {
  return (size + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
}

}  // namespace npu::emulator

#endif  // EMULATOR_SUPPORT_H_
