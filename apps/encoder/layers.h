// The parts of a transformer layer beside attention and matrix products, in f64 (see
// encoder.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "headwise/tensor.h"

namespace headwise::encoder {

struct LayerNorm {
  std::vector<double> gain, shift;  // [d_model] both
  double eps = 0;

  // Normalises each row of x [T, d_model] in place, after adding the same row of `added` unless
  // that is empty: y = (x - mean) / sqrt(variance + eps) * gain + shift.
  void apply(std::span<double> x, std::span<const double> added) const;
};

// x / 2 (1 + erf(x / sqrt 2)) in place: the exact form, not the one with tanh.
void gelu(std::span<double> x);

// Any floating dtype and strides, row by row.
std::vector<double> to_doubles(const ConstTensorView& view);

}  // namespace headwise::encoder
