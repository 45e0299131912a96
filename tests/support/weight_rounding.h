// What kernels do to weights before they meet their values. No GoogleTest here.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "headwise/dtype.h"
#include "headwise/plan.h"

namespace headwise::test {

// Relative, by the attention kernel of that name: a bf16's rounding, and as much again for the sum
// of the weights, which is that of unrounded ones.
inline double weight_rounding(std::string_view kernel) {
  return kernel == "bf16_dot" || kernel == "bf16_amx" ? 0x1p-8 : 0.0;
}

// By any of the kernels that a call may get now.
inline double weight_rounding(DType dtype) {
  if (dtype != DType::bf16) return 0.0;
  if (kernel() != "auto") return weight_rounding(std::string_view(kernel()));
  double largest = 0.0;
  for (const std::string& name : available_kernels())
    largest = std::max(largest, weight_rounding(std::string_view(name)));
  return largest;
}

}  // namespace headwise::test
