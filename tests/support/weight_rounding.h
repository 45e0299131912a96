// What kernels do to weights before they meet their values. No GoogleTest here.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/dtype.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"

namespace headwise::test {

// Relative, by the attention kernel of that name: a bf16's rounding, and as much again for the sum
// of the weights, which is that of unrounded ones.
inline double weight_rounding(std::string_view kernel) {
  return kernel == "bf16_dot" || kernel == "bf16_amx" ? 0x1p-8 : 0.0;
}

// What the sum of exponentials is off by, relative, beyond f32 arithmetic.
inline double sum_rounding(std::string_view kernel) { return kernel == "bf16_amx" ? 3e-6 : 0.0; }

// The largest by any of the kernels that a call of bf16 may get now.
template <typename Rounding>
double of_possible_kernels(DType dtype, Rounding&& rounding) {
  if (dtype != DType::bf16) return 0.0;
  if (kernel() != "auto") return rounding(kernel());
  double largest = 0.0;
  for (const std::string& name : available_kernels()) largest = std::max(largest, rounding(name));
  return largest;
}
inline double weight_rounding(DType dtype) {
  return of_possible_kernels(dtype, [](std::string_view name) { return weight_rounding(name); });
}
inline double sum_rounding(DType dtype) {
  return of_possible_kernels(dtype, [](std::string_view name) { return sum_rounding(name); });
}

// What a module of bf16 is off by, of its row's scale: where the CPU has AMX its queries, keys,
// values and heads are rounded to bf16 too, and a score's rounding shows in two weights.
inline double module_rounding(DType dtype) {
  const std::vector<std::string> kernels = available_kernels();
  const bool amx = std::find(kernels.begin(), kernels.end(), "bf16_amx") != kernels.end();
  return dtype == DType::bf16 && amx && isa() == "avx512" ? 0x1p-6 : 0.0;
}

}  // namespace headwise::test
