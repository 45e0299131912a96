// A matrix product with its operands, and its definition in double.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/tensor.h"
#include "kernels/matmul.h"
#include "support/tensors.h"

namespace headwise::test {

struct ProductCase {
  std::size_t M, N, K;
  DType dtype = DType::f32;    // of A, W and the bias
  DType c_dtype = DType::f32;  // f32 and f64: the arithmetic's
  std::size_t pad = 0;         // unused elements after each row of A and C
  std::size_t step = 1;        // stride of A's elements
  std::size_t n_inner = 1;     // rows of A and C come in groups of this many, one more row apart
  bool bias = true;
  std::optional<DType> w_dtype{};  // of W alone
  std::size_t c_step = 1;          // stride of C's elements
  bool transposed = false;         // A lies in memory as [K, M]; groups and `step` don't go with it
  bool roomy = false;  // rows of C end in columns that may be written, up to whole panels
};

// A product with its operands. C begins as NaN, with guards that must survive.
class Product {
 public:
  explicit Product(const ProductCase& c)
      : c_(c),
        lda_(c.transposed ? c.M + c.pad : c.K * c.step + c.pad),
        ldc_((c.roomy ? (c.N + 31) / 32 * 32 : c.N) * c.c_step + c.pad),
        a_(gaussian(c.dtype, {(c.transposed ? c.K : slots()) * lda_ + 1}, 1)),
        w_(gaussian(c.w_dtype.value_or(c.dtype), {c.N, c.K}, 2)),
        bias_(gaussian(c.dtype, {c.N}, 3)),
        out_(c.c_dtype, {slots() * ldc_ + 1}) {
    clear();
    packed_ = kernels::PackedWeights(w_.view(), c.bias ? bias_.view() : ConstTensorView{});
    args_.w = &packed_;
    args_.a_dtype = c.dtype;
    args_.a = a_.view().data;
    args_.a_rows = rows(c.transposed ? 1 : lda_);
    args_.a_stride_k = static_cast<std::ptrdiff_t>(c.transposed ? lda_ : c.step);
    args_.c_dtype = c.c_dtype;
    args_.c = out_.view().data;
    args_.c_rows = rows(ldc_);
    args_.c_stride_n = static_cast<std::ptrdiff_t>(c.c_step);
    if (c.roomy) args_.c_columns = ldc_ - c.pad;
    args_.M = c.M;
  }

  const kernels::MatmulArgs& args() const { return args_; }
  void clear() {
    for (std::size_t i = 0; i < out_.size(); ++i)
      put(out_.view(), i, std::numeric_limits<double>::quiet_NaN());
  }
  void run() {
    kernels::matmul({&args_, 1});
    // What is in the room past column N is nobody's business.
    for (std::size_t m = 0; m < c_.M; ++m)
      for (std::size_t n = c_.N; n < args_.c_columns; ++n)
        put(out_.view(), slot(m) * ldc_ + n, std::numeric_limits<double>::quiet_NaN());
  }
  std::string bytes() const {
    return {static_cast<const char*>(out_.view().data), out_.size() * size_of(c_.c_dtype)};
  }

  // Compares with the sums in double, which are computed once.
  void check() {
    if (expected_.empty()) define();
    std::vector<bool> written(out_.size());
    for (std::size_t m = 0; m < c_.M; ++m)
      for (std::size_t n = 0; n < c_.N; ++n) {
        const std::size_t at = slot(m) * ldc_ + n * c_.c_step;
        const Expected& e = expected_[m * c_.N + n];
        written[at] = true;
        ASSERT_NEAR(get(out_.view(), at), e.sum, e.bound) << "row " << m << ", column " << n;
      }
    for (std::size_t i = 0; i < out_.size(); ++i)
      ASSERT_TRUE(written[i] || std::isnan(get(out_.view(), i))) << "stray write at " << i;
  }

 private:
  struct Expected {
    double sum, bound;
  };

  void define() {
    const double unit = epsilon(c_.dtype == DType::f64 ? DType::f64 : DType::f32);
    for (std::size_t m = 0; m < c_.M; ++m)
      for (std::size_t n = 0; n < c_.N; ++n) {
        double sum = 0, squares = 1;
        for (std::size_t k = 0; k < c_.K; ++k) {
          const std::size_t at = c_.transposed ? k * lda_ + m : slot(m) * lda_ + k * c_.step;
          const double term = get(a_.view(), at) * get(w_.view(), n * c_.K + k);
          sum += term;
          squares += term * term;
        }
        if (c_.bias) sum += get(bias_.view(), n);
        // Each of K roundings is random, up to half a unit of a partial sum of size sqrt(squares);
        // then the result is rounded to its own dtype.
        const double chain = 2 * unit * std::sqrt(squares * static_cast<double>(c_.K + 1));
        expected_.push_back({sum, chain + 0.5 * epsilon(c_.c_dtype) * (std::abs(sum) + chain)});
      }
  }

  std::size_t slots() const { return c_.M + c_.M / c_.n_inner + 1; }
  std::size_t slot(std::size_t m) const { return c_.n_inner == 1 ? m : m + m / c_.n_inner; }
  kernels::RowLayout rows(std::size_t ld) const {
    const auto stride = static_cast<std::ptrdiff_t>(ld);
    if (c_.n_inner == 1) return {1, stride, 0};
    return {c_.n_inner, stride * static_cast<std::ptrdiff_t>(c_.n_inner + 1), stride};
  }

  ProductCase c_;
  std::size_t lda_, ldc_;
  Tensor a_, w_, bias_, out_;
  std::vector<Expected> expected_;  // [M, N]
  kernels::PackedWeights packed_;
  kernels::MatmulArgs args_;
};

}  // namespace headwise::test
