#include <cstddef>

#include <cstring>

#include "gtest/gtest.h"
#include "kernels/matmul.h"
#include "support/isas.h"
#include "support/product.h"
#include "support/tensors.h"

namespace headwise::kernels {
namespace {

using test::Product;

// Where column c of row k lies in a panel: rows of bf16 in pairs.
std::size_t place_of(std::size_t k, std::size_t c, const PackedWeights& packed) {
  const std::size_t columns = packed.panel_columns();
  if (packed.stored() != DType::bf16) return k * columns + c;
  return (k / 2 * columns + c) * 2 + k % 2;
}

TEST(MatmulPack, PanelsHoldColumnsSideBySideAndZerosAfterTheLast) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const std::size_t N = 35, K = 70;
    const Tensor w = test::gaussian(dtype, {N, K}, 1), bias = test::gaussian(dtype, {N}, 2);
    const PackedWeights packed(w.view(), bias.view());
    EXPECT_EQ(packed.dtype(), dtype == DType::f64 ? DType::f64 : DType::f32);
    EXPECT_EQ(packed.stored(), dtype == DType::f16 ? DType::f32 : dtype);
    const std::size_t columns = packed.panel_columns();
    EXPECT_EQ(packed.n_panels(), (N + columns - 1) / columns);
    for (std::size_t p = 0; p < packed.n_panels(); ++p)
      for (std::size_t c = 0; c < columns; ++c) {
        const std::size_t n = p * columns + c;
        const ConstTensorView panel(packed.panel(p), packed.stored(), {packed.padded_K(), columns});
        const ConstTensorView biases(packed.bias(p), packed.dtype(), {columns});
        EXPECT_EQ(test::get(biases, c), n < N ? test::get(bias.view(), n) : 0.0);
        for (std::size_t k = 0; k < packed.padded_K(); ++k)
          ASSERT_EQ(test::get(panel, place_of(k, c, packed)),
                    n < N && k < K ? test::get(w.view(), n * K + k) : 0.0)
              << name_of(dtype) << ", column " << n << ", k " << k;
      }
  }
}

TEST(MatmulPack, AnotherBiasSharesTheTable) {
  const Tensor w = test::gaussian(DType::bf16, {35, 7}, 1);
  const PackedWeights first(w.view(), {});
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor bias = test::gaussian(dtype, {35}, 2);
    const PackedWeights second(first, bias.view());
    EXPECT_EQ(second.panel(1), first.panel(1));
    for (std::size_t n = 0; n < 35; ++n)
      EXPECT_EQ(reinterpret_cast<const float*>(second.bias(0))[n],
                static_cast<float>(test::get(bias.view(), n)));
  }
  EXPECT_EQ(*reinterpret_cast<const float*>(first.bias(0)), 0.0f);
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

TEST(MatmulPack, TransposedTablesOfSeveralPanels) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor w = test::gaussian(dtype, {150, 70}, 1);  // read as [70, 150]
    const ConstTensorView turned(w.view().data, dtype, {70, 150}, {1, 70});
    Tensor copy(dtype, {70, 150});
    for (std::size_t n = 0; n < 70; ++n)
      for (std::size_t k = 0; k < 150; ++k)
        test::put(copy.view(), n * 150 + k, test::get(w.view(), k * 70 + n));
    const PackedWeights a(turned, {}), b(copy.view(), {});
    EXPECT_EQ(std::memcmp(a.panel(0), b.panel(0), a.n_panels() * a.panel_bytes()), 0);
  }
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
