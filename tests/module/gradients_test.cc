// Gradient buffers, and the sums over time steps that fill them.
#include "module/gradients.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/multihead_attention.h"
#include "support/tensors.h"

namespace headwise {
namespace {

double at(const ConstTensorView& x, std::size_t r, std::size_t n) {
  ConstTensorView one = x;
  return test::get(one, static_cast<std::size_t>(static_cast<std::ptrdiff_t>(r) * x.strides[0] +
                                                 static_cast<std::ptrdiff_t>(n) * x.strides[1]));
}

TEST(Gradients, ColumnSumsAreAdded) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const std::size_t rows : {0, 1, 17})
      for (const std::size_t n : {1, 63, 64, 65, 130})
        for (const bool turned : {false, true}) {
          const Tensor memory = test::gaussian(dtype, {rows * n + 1}, 1);
          const auto r = static_cast<std::ptrdiff_t>(rows), w = static_cast<std::ptrdiff_t>(n);
          const ConstTensorView x(memory.view().data, dtype, {rows, n},
                                  turned ? Strides{1, r} : Strides{w, 1});
          Tensor to = test::gaussian(dtype == DType::f64 ? DType::f64 : DType::f32, {n}, 2);
          const Tensor before = Tensor::copy_of(to);
          module::add_column_sums(x, to.view());
          for (std::size_t i = 0; i < n; ++i) {
            double sum = test::get(before.view(), i);
            for (std::size_t k = 0; k < rows; ++k) sum += at(x, k, i);
            ASSERT_NEAR(test::get(to.view(), i), sum, 20 * 5 * test::epsilon(to.dtype()));
          }
        }
}

TEST(Gradients, WeightsAreSumsOfProductsOverRows) {
  for (const std::size_t rows : {0, 1, 17, 300}) {
    const std::size_t N = 35, K = 21;
    const Tensor dy = test::gaussian(DType::f32, {rows, N}, 1);
    const Tensor x = test::gaussian(DType::f32, {rows, K}, 2);
    Tensor weight = test::gaussian(DType::f32, {N, K}, 3), bias = Tensor::zeros(DType::f32, {N});
    const Tensor before = Tensor::copy_of(weight);
    const module::WeightGradient one{dy, x, {weight.view(), bias.view()}};
    module::add_weight_gradients({&one, 1});
    for (std::size_t n = 0; n < N; ++n)
      for (std::size_t k = 0; k < K; ++k) {
        double sum = test::get(before.view(), n * K + k), squares = 1;
        for (std::size_t r = 0; r < rows; ++r) {
          const double term = at(dy.view(), r, n) * at(x.view(), r, k);
          sum += term;
          squares += term * term;
        }
        ASSERT_NEAR(
            test::get(weight.view(), n * K + k), sum,
            2 * test::epsilon(DType::f32) * std::sqrt(squares * static_cast<double>(rows + 1)));
      }
  }
}

TEST(Gradients, HaveTheNamesAndShapesOfTheParameters) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const MultiheadAttention module(
        {.embed_dim = 12, .num_heads = 3, .add_bias_kv = true, .kdim = 5, .dtype = dtype});
    ParameterGradients gradients(module);
    const std::vector<NamedView> parameters = module.parameters();
    const std::vector<NamedTensorView> views = gradients.views();
    ASSERT_EQ(views.size(), parameters.size());
    for (std::size_t i = 0; i < views.size(); ++i) {
      EXPECT_EQ(views[i].name, parameters[i].name);
      EXPECT_EQ(views[i].view.shape, parameters[i].view.shape);
      EXPECT_EQ(views[i].view.dtype, dtype == DType::f64 ? DType::f64 : DType::f32);
      EXPECT_EQ(gradients.view(views[i].name).data, views[i].view.data);
    }
    EXPECT_THROW(gradients.view("weight"), ArgumentError);
  }
}

}  // namespace
}  // namespace headwise
