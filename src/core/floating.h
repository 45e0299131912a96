// A floating dtype as a type.
#pragma once

#include <type_traits>

#include "headwise/dtype.h"

namespace headwise::core {

// f(T{}) for the type of a floating dtype.
template <typename F>
decltype(auto) with_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(bfloat16{});
    case DType::f16:
      return f(float16{});
    default:
      return f(float{});
  }
}

// The 16-bit types by way of f32.
template <typename To, typename From>
To as(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (sizeof(From) == 2)
    return static_cast<To>(static_cast<float>(x));
  else if constexpr (sizeof(To) == 2)
    return To(static_cast<float>(x));
  else
    return static_cast<To>(x);
}

}  // namespace headwise::core
