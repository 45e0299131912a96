// Steps of an optimizer beside the same steps in double.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/optim.h"
#include "support/tensors.h"
#include "support/threads.h"

namespace headwise::test {

// What an optimizer does to one number, step t of its gradient g; `state` begins as zeros.
using NumberRule =
    std::function<void(double& value, double g, double t, std::vector<double>& state)>;

inline std::string bytes_of(const Tensor& t) {
  return {static_cast<const char*>(t.view().data), t.size() * size_of(t.dtype())};
}

// Five steps of a tensor of n elements in every dtype; f32 and f64 to some roundings a step, 16-bit
// values to one rounding of their own each.
inline void expect_steps(const std::function<Optimizer()>& make, const NumberRule& rule) {
  constexpr int kSteps = 5;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const std::size_t n : {0, 1, 17, 1000, 40000}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(n));
      const bool wide_gradient = size_of(dtype) == 2 && n % 2 == 1;
      const DType g_dtype = wide_gradient ? DType::f32 : dtype;
      Optimizer optimizer = make();
      Tensor value = gaussian(dtype, {n}, 1);
      std::vector<double> expected(n), sizes(n);
      std::vector<std::vector<double>> state(n, std::vector<double>(3, 0.0));
      for (std::size_t i = 0; i < n; ++i) expected[i] = get(value, i);
      for (int t = 1; t <= kSteps; ++t) {
        const Tensor gradient = gaussian(g_dtype, {n}, static_cast<unsigned>(10 + t));
        const TrainedParameter p{"w", value.view(), gradient};
        optimizer.step({&p, 1});
        for (std::size_t i = 0; i < n; ++i) {
          rule(expected[i], get(gradient, i), t, state[i]);
          // 16-bit values go on from what they were rounded to.
          const double unit = epsilon(dtype == DType::f64 ? DType::f64 : DType::f32);
          sizes[i] = std::max(sizes[i], std::abs(expected[i])) + 1;
          ASSERT_NEAR(get(value, i), expected[i],
                      32 * unit * sizes[i] +
                          (size_of(dtype) == 2 ? epsilon(dtype) * std::abs(expected[i]) : 0.0))
              << "element " << i << ", step " << t;
          if (size_of(dtype) == 2) expected[i] = get(value, i);
        }
      }
    }
}

}  // namespace headwise::test
