// Products on AMX against the definition in double. matmul_test.cc has the forms of rows.
#include "kernels/bf16/amx_matmul.h"

#include <algorithm>
#include <string>

#include "gtest/gtest.h"
#include "kernels/bf16/amx_forward.h"
#include "support/isas.h"
#include "support/product.h"

namespace headwise::kernels {
namespace {

using test::Product;

void check(const test::ProductCase& c) {
  SCOPED_TRACE("M " + std::to_string(c.M) + ", N " + std::to_string(c.N) + ", K " +
               std::to_string(c.K) + " to " + std::string(name_of(c.c_dtype)));
  Product product(c);
  ASSERT_TRUE(is_amx_product(product.args()));
  product.run();
  product.check();
  const std::string whole = product.bytes();
  product.clear();
  for (std::size_t m = 0; m < c.M; m += 5)
    for (std::size_t p = 0; p < product.args().w->n_panels(); ++p)
      matmul_block(product.args(),
                   {.m0 = m, .rows = std::min<std::size_t>(5, c.M - m), .panel0 = p, .panels = 1});
  EXPECT_TRUE(product.bytes() == whole) << "five rows and one panel at a time";
}

TEST(AmxMatmul, OddSizes) {
  if (!bf16_amx_available()) GTEST_SKIP() << "this CPU has no AMX";
  for (std::size_t M : {1u, 15u, 16u, 17u, 32u, 33u, 100u})
    for (std::size_t N : {1u, 31u, 32u, 33u, 65u})
      for (std::size_t K : {0u, 1u, 31u, 32u, 33u, 64u, 300u})
        for (DType c_dtype : {DType::f32, DType::bf16, DType::f16})
          check({.M = M, .N = N, .K = K, .dtype = DType::bf16, .c_dtype = c_dtype});
}

TEST(AmxMatmul, ManyRowsInPlaceAndCopied) {
  if (!bf16_amx_available()) GTEST_SKIP() << "this CPU has no AMX";
  for (std::size_t pad : {0u, 32u, 960u})
    check({.M = 800, .N = 96, .K = 64, .dtype = DType::bf16, .c_dtype = DType::bf16, .pad = pad});
  check({.M = 96, .N = 40, .K = 64, .dtype = DType::bf16, .c_dtype = DType::bf16, .n_inner = 5});
  check({.M = 96, .N = 40, .K = 64, .dtype = DType::bf16, .c_dtype = DType::bf16, .step = 2});
  check({.M = 96, .N = 40, .K = 64, .dtype = DType::bf16, .c_dtype = DType::bf16, .c_step = 2});
}

TEST(AmxMatmul, DtypesAndInstructionSetDecide) {
  const test::ProductCase sizes{.M = 3, .N = 3, .K = 3};
  test::ProductCase c = sizes;
  EXPECT_FALSE(is_amx_product(Product(c).args()));
  c.w_dtype = DType::bf16;
  EXPECT_FALSE(is_amx_product(Product(c).args())) << "rows of f32 are not rounded";
  c.dtype = DType::bf16;
  test::for_each_isa([&] {
    EXPECT_EQ(is_amx_product(Product(c).args()), bf16_amx_available());
    EXPECT_TRUE(isa() == "avx512" || !bf16_amx_available());
  });
}

}  // namespace
}  // namespace headwise::kernels
