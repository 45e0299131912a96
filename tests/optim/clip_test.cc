// Clipping by the norm of all gradients together.
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/optim.h"
#include "support/tensors.h"
#include "support/threads.h"

namespace headwise {
namespace {

TEST(Clip, ScalesToTheNorm) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const double max_norm : {0.0, 0.5, 1e6}) {
      Tensor a = test::gaussian(dtype, {40000}, 1, 0.01), b = test::gaussian(dtype, {3, 5}, 2);
      const Tensor before_a = Tensor::copy_of(a), before_b = Tensor::copy_of(b);
      double sum = 0;
      for (const Tensor* t : {&before_a, &before_b})
        for (std::size_t i = 0; i < t->size(); ++i) sum += std::pow(test::get(*t, i), 2);
      const std::vector<NamedTensorView> all{{"a", a.view()}, {"b", b.view()}};
      EXPECT_NEAR(clip_gradient_norm(all, max_norm), std::sqrt(sum), 1e-12 * std::sqrt(sum));
      const double factor = std::min(1.0, max_norm / (std::sqrt(sum) + 1e-6));
      for (std::size_t i = 0; i < b.size(); ++i) {
        const double x = factor * test::get(before_b, i);
        EXPECT_NEAR(test::get(b, i), x, 2 * test::epsilon(dtype) * std::abs(x) + 1e-7);
      }
    }
}

TEST(Clip, SameNormForAnyNumberOfThreads) {
  const auto norm = [](int threads) {
    const test::ScopedThreads scoped(threads);
    Tensor a = test::gaussian(DType::f32, {100001}, 1);
    const NamedTensorView one{"a", a.view()};
    return clip_gradient_norm({&one, 1}, 1e9);
  };
  EXPECT_EQ(norm(1), norm(2));
  EXPECT_EQ(norm(1), norm(5));
}

TEST(Clip, NormsThatAreNotFinite) {
  Tensor a = test::gaussian(DType::f32, {3}, 1);
  a.data<float>()[1] = std::numeric_limits<float>::infinity();
  const NamedTensorView one{"a", a.view()};
  const float first = a.data<float>()[0];
  EXPECT_THROW(clip_gradient_norm({&one, 1}, 1.0, true), ArgumentError);
  EXPECT_EQ(a.data<float>()[0], first);
  EXPECT_TRUE(std::isinf(clip_gradient_norm({&one, 1}, 1.0)));
  EXPECT_EQ(a.data<float>()[0], 0);
  EXPECT_TRUE(std::isnan(a.data<float>()[1]));
  EXPECT_THROW(clip_gradient_norm({&one, 1}, -1.0), ArgumentError);
  EXPECT_THROW(clip_gradient_norm({&one, 1}, std::nan("")), ArgumentError);
  EXPECT_EQ(clip_gradient_norm({}, 1.0), 0);
}

}  // namespace
}  // namespace headwise
