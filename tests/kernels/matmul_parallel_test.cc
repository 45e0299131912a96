// The cut of products into tasks changes no bit.
#include <string>

#include "gtest/gtest.h"
#include "kernels/matmul.h"
#include "support/product.h"
#include "support/threads.h"

namespace headwise::kernels {
namespace {

using test::Product;

TEST(MatmulParallel, BitsDoNotDependOnTheCut) {
  for (std::size_t M : {1u, 7u, 100u, 300u}) {
    SCOPED_TRACE(M);
    Product product({.M = M, .N = 200, .K = 513});
    product.run();
    const std::string whole = product.bytes();
    for (int n : {1, 2, 5}) {
      const test::ScopedThreads threads(n);
      product.clear();
      product.run();
      EXPECT_TRUE(product.bytes() == whole) << n << " threads";
    }
    product.clear();
    for (std::size_t m = 0; m < M; ++m)
      for (std::size_t p = 0; p < product.args().w->n_panels(); ++p)
        matmul_block(product.args(), {.m0 = m, .rows = 1, .panel0 = p, .panels = 1});
    EXPECT_TRUE(product.bytes() == whole) << "one row and panel at a time";
  }
}

TEST(MatmulParallel, SeveralProductsInOneRegion) {
  Product first({.M = 33, .N = 100, .K = 64}), second({.M = 5, .N = 31, .K = 9});
  Product nothing({.M = 0, .N = 10, .K = 10});
  const MatmulArgs all[] = {first.args(), nothing.args(), second.args()};
  matmul(all);
  first.check();
  second.check();
}

}  // namespace
}  // namespace headwise::kernels
