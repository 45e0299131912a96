// The check behind `headwise verify --gradients`: gradients in f64 against central differences of
// the forward call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headwise::cli {

struct GradientReport {
  std::string call;      // attention or module
  std::string option;    // what is special about the call
  std::string gradient;  // of which argument or parameter
  std::size_t n_elements = 0;
  double error = 0;  // largest, relative to the gradient's largest element, or to 1 if that is less
};

// An error of a difference of fourth order with a step of 2^-10 is below 1e-11 here.
inline constexpr double kGradientBound = 1e-7;

std::vector<GradientReport> verify_gradients(std::uint64_t seed);

}  // namespace headwise::cli
