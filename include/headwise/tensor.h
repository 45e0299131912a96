// Tensors: views with shape and strides that own nothing, and a contiguous owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "headwise/buffer.h"
#include "headwise/dtype.h"
#include "headwise/export.h"

namespace headwise {

inline constexpr std::size_t kMaxRank = 16;

namespace detail {
[[noreturn]] HEADWISE_API void throw_rank_too_large(std::size_t rank);
[[noreturn]] HEADWISE_API void throw_wrong_dtype(DType found, DType expected);
}  // namespace detail

// Up to kMaxRank numbers in place, so that a view costs no allocation.
template <typename T>
class DimVector {
 public:
  DimVector() = default;
  DimVector(std::initializer_list<T> values) : DimVector(values.begin(), values.end()) {}
  template <typename It>
  DimVector(It first, It last) {
    for (; first != last; ++first) push_back(static_cast<T>(*first));
  }
  explicit DimVector(std::span<const T> values) : DimVector(values.begin(), values.end()) {}

  void push_back(T value) {
    if (size_ == kMaxRank) detail::throw_rank_too_large(size_ + 1);
    values_[size_++] = value;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return values_[i]; }
  T operator[](std::size_t i) const { return values_[i]; }
  T from_back(std::size_t i) const { return values_[size_ - 1 - i]; }  // 0: the last one
  T* begin() { return values_.data(); }
  T* end() { return values_.data() + size_; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return values_.data() + size_; }
  friend bool operator==(const DimVector& a, const DimVector& b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i)
      if (a.values_[i] != b.values_[i]) return false;
    return true;
  }

 private:
  std::array<T, kMaxRank> values_{};
  std::size_t size_ = 0;
};

using Shape = DimVector<std::size_t>;
using Strides = DimVector<std::ptrdiff_t>;  // in elements; may be 0 or negative

HEADWISE_API std::string to_string(const Shape& shape);       // "(2, 8, 16, 64)"
HEADWISE_API Strides contiguous_strides(const Shape& shape);  // row-major
HEADWISE_API std::size_t element_count(const Shape& shape);  // throws std::length_error past size_t

// Memory that somebody else owns. Element (i, j, ...) lies at data + i * strides[0] + j *
// strides[1] ... at an address that is a multiple of the element's size.
struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;

  ConstTensorView() = default;
  ConstTensorView(const void* d, DType t, Shape s)
      : ConstTensorView(d, t, s, contiguous_strides(s)) {}
  ConstTensorView(const void* d, DType t, Shape s, Strides st)
      : data(d), dtype(t), shape(s), strides(st) {}
  template <typename T>
  ConstTensorView(const T* d, Shape s) : ConstTensorView(d, dtype_of_v<T>, s) {}

  std::size_t rank() const { return shape.size(); }
};

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;

  TensorView() = default;
  TensorView(void* d, DType t, Shape s) : TensorView(d, t, s, contiguous_strides(s)) {}
  TensorView(void* d, DType t, Shape s, Strides st) : data(d), dtype(t), shape(s), strides(st) {}
  template <typename T>
  requires(!std::is_const_v<T>) TensorView(T* d, Shape s) : TensorView(d, dtype_of_v<T>, s) {}

  operator ConstTensorView() const { return {data, dtype, shape, strides}; }
  std::size_t rank() const { return shape.size(); }
};

struct NamedView {
  std::string name;
  ConstTensorView view;
};

struct NamedTensorView {
  std::string name;
  TensorView view;
};

// Owns its elements, contiguous and row-major, 64-byte aligned.
class HEADWISE_API Tensor {
 public:
  Tensor() : Tensor(DType::f32, {0}) {}
  Tensor(DType dtype, Shape shape);  // not initialised
  Tensor(Tensor&& other) noexcept    // the other is left with no elements
      : dtype_(other.dtype_),
        shape_(std::exchange(other.shape_, {0})),
        buffer_(std::move(other.buffer_)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    dtype_ = other.dtype_;
    shape_ = std::exchange(other.shape_, {0});
    buffer_ = std::move(other.buffer_);
    return *this;
  }
  static Tensor zeros(DType dtype, Shape shape);
  static Tensor copy_of(ConstTensorView view);  // any strides; throws ArgumentError

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t size() const { return element_count(shape_); }
  TensorView view() { return {buffer_.data(), dtype_, shape_}; }
  ConstTensorView view() const { return {buffer_.data(), dtype_, shape_}; }
  operator ConstTensorView() const { return view(); }

  // Typed access; throws DTypeError when T is not the element type.
  template <typename T>
  T* data() {
    check_dtype(dtype_of_v<T>);
    return reinterpret_cast<T*>(buffer_.data());
  }
  template <typename T>
  const T* data() const {
    check_dtype(dtype_of_v<T>);
    return reinterpret_cast<const T*>(buffer_.data());
  }
  template <typename T>
  std::span<const T> values() const {
    return {data<T>(), size()};
  }

 private:
  void check_dtype(DType wanted) const {
    if (wanted != dtype_) detail::throw_wrong_dtype(dtype_, wanted);
  }

  DType dtype_;
  Shape shape_;
  Buffer buffer_;
};

}  // namespace headwise
