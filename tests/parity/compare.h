// How far a result is from the expected one, in units of what is allowed.
#pragma once

#include <cstddef>
#include <string>

#include "headwise/tensor.h"

namespace headwise::parity {

struct Difference {
  double units = 0.0;  // the largest error; more than 1 is a failure
  std::size_t elements = 0;
  std::size_t near_zero = 0;  // 16-bit: more than one step off, yet within 2e-6 of the row's scale
  std::string worst;          // the element, what was found and expected

  void add(const Difference& other);
};

// Errors are relative to a row's scale: the largest of what its elements sum up.
enum class Scale {
  given,  // `scale` holds one number for each row
  row,    // the largest expected element of the row
  unit,   // 1, or the expected element where that is larger
};

// f32: 2e-6 of the scale, f64: 1e-14 of it. bf16, f16: one step from the correctly rounded result,
// or, where terms cancel to less than the f32 sums can resolve, 2e-6 of the scale; more where a
// kernel has rounded the weights, by weight_rounding of themselves, before they met their values.
// Where the expected element is NaN or infinite the found one has to be the same.
Difference compare(const std::string& name, const ConstTensorView& found,
                   const ConstTensorView& expected, Scale kind, const ConstTensorView& scale = {},
                   double weight_rounding = 0.0);

// Steps between representable values, for parameters.
Difference compare_steps(const std::string& name, const ConstTensorView& found,
                         const ConstTensorView& expected, int allowed);

}  // namespace headwise::parity
