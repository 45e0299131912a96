// Tensors of any floating dtype, written and read as double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

#include "headwise/tensor.h"
#include "support/epsilon.h"

namespace headwise::test {

// Element i of a contiguous tensor.
inline void put(const TensorView& t, std::size_t i, double value) {
  switch (t.dtype) {
    case DType::f32:
      static_cast<float*>(t.data)[i] = static_cast<float>(value);
      break;
    case DType::f64:
      static_cast<double*>(t.data)[i] = value;
      break;
    case DType::bf16:
      static_cast<bfloat16*>(t.data)[i] = bfloat16(static_cast<float>(value));
      break;
    case DType::f16:
      static_cast<float16*>(t.data)[i] = float16(static_cast<float>(value));
      break;
    default:
      static_cast<std::uint8_t*>(t.data)[i] = value != 0;
  }
}

inline double get(const ConstTensorView& t, std::size_t i) {
  switch (t.dtype) {
    case DType::f32:
      return static_cast<const float*>(t.data)[i];
    case DType::f64:
      return static_cast<const double*>(t.data)[i];
    case DType::bf16:
      return static_cast<float>(static_cast<const bfloat16*>(t.data)[i]);
    case DType::f16:
      return static_cast<float>(static_cast<const float16*>(t.data)[i]);
    default:
      return static_cast<const std::uint8_t*>(t.data)[i] != 0;
  }
}

inline Tensor gaussian(DType dtype, Shape shape, unsigned seed, double scale = 1.0) {
  Tensor t(dtype, shape);
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0.0, scale);
  for (std::size_t i = 0; i < t.size(); ++i) put(t.view(), i, normal(engine));
  return t;
}

}  // namespace headwise::test
