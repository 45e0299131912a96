#include "core/convert.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace headwise::core {
namespace {

template <typename To, typename From>
To cast(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, bfloat16> || std::is_same_v<From, float16>)
    return cast<To>(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, bfloat16> || std::is_same_v<To, float16>)
    return static_cast<To>(static_cast<float>(x));
  else
    return static_cast<To>(x);
}

// Calls f with a value of the dtype; the others by a carrier of the same size.
template <typename F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(bfloat16{});
    case DType::f16:
      return f(float16{});
    default:
      break;
  }
  switch (size_of(dtype)) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

// The last dim, all at once.
template <typename From, typename To>
void convert_row(const From* from, std::ptrdiff_t from_stride, To* to, std::ptrdiff_t to_stride,
                 std::size_t n) {
  if (from_stride == 1 && to_stride == 1) {
    for (std::size_t i = 0; i < n; ++i) to[i] = cast<To>(from[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i, from += from_stride, to += to_stride) *to = cast<To>(*from);
  }
}

template <typename From, typename To>
void convert_dims(const ConstTensorView& from, const TensorView& to, std::size_t dim, const From* x,
                  To* y) {
  if (dim == from.rank()) return convert_row(x, 1, y, 1, 1);
  if (dim + 1 == from.rank())
    return convert_row(x, from.strides[dim], y, to.strides[dim], from.shape[dim]);
  for (std::size_t i = 0; i < from.shape[dim]; ++i)
    convert_dims(from, to, dim + 1, x + static_cast<std::ptrdiff_t>(i) * from.strides[dim],
                 y + static_cast<std::ptrdiff_t>(i) * to.strides[dim]);
}

}  // namespace

void convert(const ConstTensorView& from, const TensorView& to) {
  for (std::size_t n : from.shape)
    if (n == 0) return;
  with_type(from.dtype, [&](auto x) {
    with_type(to.dtype, [&](auto y) {
      convert_dims(from, to, 0, static_cast<const decltype(x)*>(from.data),
                   static_cast<decltype(y)*>(to.data));
    });
  });
}

Tensor converted(const ConstTensorView& from, DType dtype) {
  Tensor to(dtype, from.shape);
  convert(from, to.view());
  return to;
}

}  // namespace headwise::core
