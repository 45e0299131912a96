// Definitions behind tensor.h, buffer.h, dtype.h and error.h.
#include "headwise/tensor.h"

#include <cstring>
#include <new>
#include <stdexcept>

#include "core/check.h"
#include "core/checked.h"
#include "headwise/error.h"

namespace headwise {

ArgumentError::ArgumentError(std::string argument, const std::string& found,
                             const std::string& expected)
    : std::invalid_argument(argument + ": found " + found + ", expected " + expected),
      argument_(std::move(argument)) {}

void detail::throw_rank_too_large(std::size_t rank) {
  throw ArgumentError("rank", std::to_string(rank) + " dims",
                      "at most " + std::to_string(kMaxRank));
}

void detail::throw_wrong_dtype(DType found, DType expected) {
  throw DTypeError("tensor", "dtype " + std::string(name_of(found)),
                   std::string(name_of(expected)));
}

Buffer::Buffer(std::size_t bytes)
    : data_(bytes == 0
                ? nullptr
                : static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment}))),
      size_(bytes) {}

void Buffer::Free::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t{kAlignment});
}

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  if (shape.size() == 1) text += ",";
  return text + ")";
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides(shape.begin(), shape.end());
  std::size_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = static_cast<std::ptrdiff_t>(step);
    step *= shape[i];
  }
  return strides;
}

std::size_t element_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (std::size_t n : shape)
    if (n == 0) return 0;
  for (std::size_t n : shape) {
    const auto product = core::checked_mul(count, n);
    if (!product) throw std::length_error("shape " + to_string(shape) + " has too many elements");
    count = *product;
  }
  return count;
}

Tensor::Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(shape) {
  const auto bytes = core::checked_mul(element_count(shape), size_of(dtype));
  if (!bytes) throw std::length_error("shape " + to_string(shape) + " has too many bytes");
  buffer_ = Buffer(*bytes);
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  Tensor t(dtype, shape);
  if (t.buffer_.size() > 0) std::memset(t.buffer_.data(), 0, t.buffer_.size());
  return t;
}

Tensor Tensor::copy_of(ConstTensorView view) {
  core::check_view("view", view);
  Tensor t(view.dtype, view.shape);
  const std::size_t width = size_of(view.dtype), n = t.size();
  const auto* from = static_cast<const std::byte*>(view.data);
  std::byte* to = t.buffer_.data();
  DimVector<std::size_t> index(view.shape);
  for (std::size_t& i : index) i = 0;
  for (std::size_t count = 0; count < n; ++count, to += width) {
    std::ptrdiff_t offset = 0;
    for (std::size_t i = 0; i < index.size(); ++i)
      offset += static_cast<std::ptrdiff_t>(index[i]) * view.strides[i];
    std::memcpy(to, from + offset * static_cast<std::ptrdiff_t>(width), width);
    for (std::size_t i = index.size(); i-- > 0;) {
      if (++index[i] < view.shape[i]) break;
      index[i] = 0;
    }
  }
  return t;
}

}  // namespace headwise
