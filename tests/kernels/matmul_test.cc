// matmul against the definition in double, on every instruction set, and its promise of equal bits.
#include "kernels/matmul.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "kernels/bf16/amx_matmul.h"
#include "support/isas.h"
#include "support/product.h"

namespace headwise::kernels {
namespace {

using test::Product;
using test::ProductCase;

void check_everywhere(const ProductCase& c) {
  SCOPED_TRACE("M " + std::to_string(c.M) + ", N " + std::to_string(c.N) + ", K " +
               std::to_string(c.K) + ", " + std::string(name_of(c.dtype)) +
               (c.transposed ? " transposed to " : " to ") + std::string(name_of(c.c_dtype)) +
               ", pad " + std::to_string(c.pad) + ", step " + std::to_string(c.step) +
               ", groups of " + std::to_string(c.n_inner) + ", W " +
               std::string(name_of(c.w_dtype.value_or(c.dtype))));
  Product product(c);
  std::string with_fma;
  test::for_each_isa([&] {
    product.clear();
    product.run();
    product.check();
    if (!test::has_fma(isa()) || is_amx_product(product.args())) return;
    if (with_fma.empty()) with_fma = product.bytes();
    EXPECT_TRUE(product.bytes() == with_fma) << "bits differ from the best instruction set";
  });
}

constexpr std::size_t kSizes[] = {0, 1, 3, 17, 65, 100};

TEST(Matmul, OddSizes) {
  for (std::size_t M : kSizes)
    for (std::size_t N : kSizes)
      for (std::size_t K : kSizes) check_everywhere({.M = M, .N = N, .K = K});
}

TEST(Matmul, OddSizesInDouble) {
  for (std::size_t M : kSizes)
    for (std::size_t N : {1u, 15u, 33u})
      for (std::size_t K : {0u, 3u, 65u})
        check_everywhere({.M = M, .N = N, .K = K, .dtype = DType::f64, .c_dtype = DType::f64});
}

TEST(Matmul, OnePastEachBlock) {
  for (std::size_t K : {256u, 257u, 1000u})
    for (DType dtype : {DType::f32, DType::f64})
      check_everywhere({.M = 13, .N = 33, .K = K, .dtype = dtype, .c_dtype = dtype});
  check_everywhere({.M = 97, .N = 31, .K = 5});
  check_everywhere({.M = 193, .N = 70, .K = 300});
  check_everywhere({.M = 5, .N = 1000, .K = 17});
  check_everywhere({.M = 1000, .N = 3, .K = 17});
}

TEST(Matmul, RowsFourKibibytesApart) {
  check_everywhere({.M = 14, .N = 1024, .K = 1024});
  check_everywhere({.M = 14, .N = 512, .K = 512, .dtype = DType::f64, .c_dtype = DType::f64});
}

TEST(Matmul, Strides) {
  for (std::size_t n_inner : {1u, 3u})
    for (std::size_t step : {1u, 2u})
      for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
        for (bool bias : {false, true})
          check_everywhere({.M = 17,
                            .N = 35,
                            .K = 40,
                            .dtype = dtype,
                            .c_dtype = dtype == DType::f64 ? DType::f64 : DType::f32,
                            .pad = 5,
                            .step = step,
                            .n_inner = n_inner,
                            .bias = bias});
}

TEST(Matmul, TransposedRows) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (std::size_t M : kSizes)
      for (std::size_t K : {0u, 1u, 17u, 300u})
        check_everywhere({.M = M,
                          .N = 35,
                          .K = K,
                          .dtype = dtype,
                          .c_dtype = dtype == DType::f64 ? DType::f64 : DType::f32,
                          .pad = 3,
                          .transposed = true});
}

TEST(Matmul, TransposedRowsFourKibibytesApart) {
  for (DType dtype : {DType::f32, DType::bf16})
    check_everywhere({.M = 14, .N = 40, .K = 300, .dtype = dtype, .pad = 1010, .transposed = true});
}

TEST(Matmul, SixteenBitResults) {
  for (DType dtype : {DType::bf16, DType::f16})
    for (std::size_t K : {1u, 65u, 300u})
      check_everywhere(
          {.M = 19, .N = 65, .K = K, .dtype = dtype, .c_dtype = dtype, .pad = 1, .n_inner = 5});
}

// A few rows walk several panels side by side.
TEST(Matmul, FewRowsAndManyPanels) {
  for (std::size_t M : {1u, 2u, 3u, 4u})
    for (std::size_t N : {31u, 33u, 100u, 129u, 250u})
      for (std::size_t K : {1u, 63u, 65u, 257u}) {
        check_everywhere({.M = M, .N = N, .K = K});
        check_everywhere({.M = M, .N = N, .K = K, .w_dtype = DType::bf16});
      }
  check_everywhere({.M = 1, .N = 100, .K = 65, .dtype = DType::f64, .c_dtype = DType::f64});
}

TEST(Matmul, TablesInBf16BesideRowsInF32) {
  for (std::size_t M : {1u, 5u, 30u})
    for (std::size_t N : {1u, 16u, 17u, 65u})
      for (std::size_t K : {1u, 40u, 300u})
        check_everywhere({.M = M, .N = N, .K = K, .w_dtype = DType::bf16});
}

TEST(Matmul, ResultsWithStridesOrRoomForWholePanels) {
  for (std::size_t M : {1u, 5u, 30u})
    for (std::size_t N : {1u, 17u, 35u, 64u, 130u})
      for (DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        check_everywhere(
            {.M = M, .N = N, .K = 40, .dtype = dtype, .c_dtype = dtype, .pad = 3, .c_step = 2});
        check_everywhere(
            {.M = M, .N = N, .K = 40, .dtype = dtype, .c_dtype = dtype, .pad = 3, .roomy = true});
      }
}

TEST(Matmul, NaNStaysInItsRow) {
  Product product({.M = 3, .N = 40, .K = 10});
  static_cast<float*>(const_cast<void*>(product.args().a))[10] =
      std::numeric_limits<float>::quiet_NaN();
  product.run();
  const float* c = static_cast<const float*>(product.args().c);
  for (std::size_t n = 0; n < 40; ++n) {
    EXPECT_FALSE(std::isnan(c[n]));
    EXPECT_TRUE(std::isnan(c[40 + n]));
    EXPECT_FALSE(std::isnan(c[80 + n]));
  }
}

}  // namespace
}  // namespace headwise::kernels
