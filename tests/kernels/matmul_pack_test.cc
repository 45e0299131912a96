#include <cstddef>

#include "gtest/gtest.h"
#include "kernels/matmul.h"
#include "support/isas.h"
#include "support/product.h"
#include "support/tensors.h"

namespace headwise::kernels {
namespace {

using test::Product;

TEST(MatmulPack, PanelsHoldColumnsSideBySideAndZerosAfterTheLast) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const std::size_t N = 35, K = 70;
    const Tensor w = test::gaussian(dtype, {N, K}, 1), bias = test::gaussian(dtype, {N}, 2);
    const PackedWeights packed(w.view(), bias.view());
    EXPECT_EQ(packed.dtype(), dtype == DType::f64 ? DType::f64 : DType::f32);
    const std::size_t columns = packed.panel_columns();
    EXPECT_EQ(packed.n_panels(), (N + columns - 1) / columns);
    for (std::size_t p = 0; p < packed.n_panels(); ++p)
      for (std::size_t c = 0; c < columns; ++c) {
        const std::size_t n = p * columns + c;
        const ConstTensorView panel(packed.panel(p), packed.dtype(), {K, columns});
        const ConstTensorView biases(packed.bias(p), packed.dtype(), {columns});
        EXPECT_EQ(test::get(biases, c), n < N ? test::get(bias.view(), n) : 0.0);
        for (std::size_t k = 0; k < K; ++k)
          ASSERT_EQ(test::get(panel, k * columns + c), n < N ? test::get(w.view(), n * K + k) : 0.0)
              << name_of(dtype) << ", column " << n << ", k " << k;
      }
  }
}

TEST(MatmulPack, AnyStrides) {
  const Tensor w = test::gaussian(DType::f32, {4, 6}, 1);  // read as [3, 2], every second element
  const ConstTensorView part(w.data<float>() + 1, DType::f32, {3, 2}, {2, 6});
  const PackedWeights packed(part, {});
  const float* panel = reinterpret_cast<const float*>(packed.panel(0));
  for (std::size_t n = 0; n < 3; ++n)
    for (std::size_t k = 0; k < 2; ++k)
      EXPECT_EQ(panel[k * packed.panel_columns() + n], w.data<float>()[1 + 2 * n + 6 * k]);
}

TEST(MatmulPack, NothingToPack) {
  EXPECT_EQ(PackedWeights(Tensor(DType::f32, {0, 5}), {}).n_panels(), 0u);
  EXPECT_EQ(PackedWeights(Tensor(DType::f32, {5, 0}), {}).n_panels(), 1u);
}

TEST(MatmulPack, PackingSurvivesAChangeOfInstructionSet) {
  Product product({.M = 9, .N = 70, .K = 33});
  for (const std::string& name : available_isas()) {
    const test::ScopedIsa forced(name);
    product.clear();
    product.run();
    product.check();
  }
}

}  // namespace
}  // namespace headwise::kernels
