// matmul against the definition in double, on every instruction set, and its promise of equal bits.
#include "kernels/matmul.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/runtime.h"
#include "headwise/tensor.h"
#include "support/isas.h"

namespace headwise::kernels {
namespace {

void put(const TensorView& t, std::size_t i, double value) {
  switch (t.dtype) {
    case DType::f64:
      static_cast<double*>(t.data)[i] = value;
      break;
    case DType::bf16:
      static_cast<bfloat16*>(t.data)[i] = bfloat16(static_cast<float>(value));
      break;
    case DType::f16:
      static_cast<float16*>(t.data)[i] = float16(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(t.data)[i] = static_cast<float>(value);
  }
}

double get(const ConstTensorView& t, std::size_t i) {
  switch (t.dtype) {
    case DType::f64:
      return static_cast<const double*>(t.data)[i];
    case DType::bf16:
      return static_cast<float>(static_cast<const bfloat16*>(t.data)[i]);
    case DType::f16:
      return static_cast<float>(static_cast<const float16*>(t.data)[i]);
    default:
      return static_cast<const float*>(t.data)[i];
  }
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    default:
      return 0x1p-23;
  }
}

struct Case {
  std::size_t M, N, K;
  DType dtype = DType::f32;    // of A, W and the bias
  DType c_dtype = DType::f32;  // f32 and f64: the arithmetic's
  std::size_t pad = 0;         // unused elements after each row of A and C
  std::size_t step = 1;        // stride of A's elements
  std::size_t n_inner = 1;     // rows of A and C come in groups of this many, one more row apart
  bool bias = true;
};

// A product with its operands. C begins as NaN, with guards that must survive.
class Product {
 public:
  explicit Product(const Case& c)
      : c_(c),
        lda_(c.K * c.step + c.pad),
        ldc_(c.N + c.pad),
        a_(c.dtype, {slots() * lda_ + 1}),
        w_(c.dtype, {c.N, c.K}),
        bias_(c.dtype, {c.N}),
        out_(c.c_dtype, {slots() * ldc_ + 1}) {
    std::mt19937 engine(static_cast<unsigned>(c.M * 31 + c.N * 7 + c.K));
    std::normal_distribution<double> normal;
    for (Tensor* t : {&a_, &w_, &bias_})
      for (std::size_t i = 0; i < t->size(); ++i) put(t->view(), i, normal(engine));
    clear();
    packed_ = PackedWeights(w_.view(), c.bias ? bias_.view() : ConstTensorView{});
    args_.w = &packed_;
    args_.a_dtype = c.dtype;
    args_.a = a_.view().data;
    args_.a_rows = rows(lda_);
    args_.a_stride_k = static_cast<std::ptrdiff_t>(c.step);
    args_.c_dtype = c.c_dtype;
    args_.c = out_.view().data;
    args_.c_rows = rows(ldc_);
    args_.M = c.M;
  }

  const MatmulArgs& args() const { return args_; }
  void clear() {
    for (std::size_t i = 0; i < out_.size(); ++i)
      put(out_.view(), i, std::numeric_limits<double>::quiet_NaN());
  }
  void run() { matmul({&args_, 1}); }
  std::string bytes() const {
    return {static_cast<const char*>(out_.view().data), out_.size() * size_of(c_.c_dtype)};
  }

  void check() const {
    const double unit = epsilon(c_.dtype == DType::f64 ? DType::f64 : DType::f32);
    std::vector<bool> written(out_.size());
    for (std::size_t m = 0; m < c_.M; ++m)
      for (std::size_t n = 0; n < c_.N; ++n) {
        double sum = 0, squares = 1;
        for (std::size_t k = 0; k < c_.K; ++k) {
          const double term =
              get(a_.view(), slot(m) * lda_ + k * c_.step) * get(w_.view(), n * c_.K + k);
          sum += term;
          squares += term * term;
        }
        if (c_.bias) sum += get(bias_.view(), n);
        const double rounding =
            c_.c_dtype == c_.dtype || size_of(c_.c_dtype) == 2 ? epsilon(c_.c_dtype) : unit;
        const std::size_t at = slot(m) * ldc_ + n;
        written[at] = true;
        // Each of K roundings is random, up to half a unit of a partial sum of size sqrt(squares).
        const double bound = 2 * unit * std::sqrt(squares * static_cast<double>(c_.K + 1)) +
                             rounding * std::abs(sum);
        ASSERT_NEAR(get(out_.view(), at), sum, bound) << "row " << m << ", column " << n;
      }
    for (std::size_t i = 0; i < out_.size(); ++i)
      ASSERT_TRUE(written[i] || std::isnan(get(out_.view(), i))) << "stray write at " << i;
  }

 private:
  std::size_t slots() const { return c_.M + c_.M / c_.n_inner + 1; }
  std::size_t slot(std::size_t m) const { return c_.n_inner == 1 ? m : m + m / c_.n_inner; }
  RowLayout rows(std::size_t ld) const {
    const auto stride = static_cast<std::ptrdiff_t>(ld);
    if (c_.n_inner == 1) return {1, stride, 0};
    return {c_.n_inner, stride * static_cast<std::ptrdiff_t>(c_.n_inner + 1), stride};
  }

  Case c_;
  std::size_t lda_, ldc_;
  Tensor a_, w_, bias_, out_;
  PackedWeights packed_;
  MatmulArgs args_;
};

void check_everywhere(const Case& c) {
  SCOPED_TRACE("M " + std::to_string(c.M) + ", N " + std::to_string(c.N) + ", K " +
               std::to_string(c.K) + ", " + std::string(name_of(c.dtype)) + " to " +
               std::string(name_of(c.c_dtype)) + ", pad " + std::to_string(c.pad) + ", step " +
               std::to_string(c.step) + ", groups of " + std::to_string(c.n_inner));
  Product product(c);
  std::string with_fma;
  test::for_each_isa([&] {
    product.clear();
    product.run();
    product.check();
    if (!test::has_fma(isa())) return;
    if (with_fma.empty()) with_fma = product.bytes();
    EXPECT_TRUE(product.bytes() == with_fma) << "bits differ from the best instruction set";
  });
}

class Threads {
 public:
  explicit Threads(int n) : before_(get_num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

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

TEST(Matmul, SixteenBitResults) {
  for (DType dtype : {DType::bf16, DType::f16})
    for (std::size_t K : {1u, 65u, 300u})
      check_everywhere(
          {.M = 19, .N = 65, .K = K, .dtype = dtype, .c_dtype = dtype, .pad = 1, .n_inner = 5});
}

TEST(Matmul, BitsDoNotDependOnTheCut) {
  for (std::size_t M : {1u, 7u, 100u, 300u}) {
    SCOPED_TRACE(M);
    Product product({.M = M, .N = 200, .K = 513});
    product.run();
    const std::string whole = product.bytes();
    for (int n : {1, 2, 5}) {
      const Threads threads(n);
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

TEST(Matmul, SeveralProductsInOneRegion) {
  Product first({.M = 33, .N = 100, .K = 64}), second({.M = 5, .N = 31, .K = 9});
  Product nothing({.M = 0, .N = 10, .K = 10});
  const MatmulArgs all[] = {first.args(), nothing.args(), second.args()};
  matmul(all);
  first.check();
  second.check();
}

TEST(Matmul, PackingSurvivesAChangeOfInstructionSet) {
  Product product({.M = 9, .N = 70, .K = 33});
  for (const std::string& name : available_isas()) {
    const test::ScopedIsa forced(name);
    product.clear();
    product.run();
    product.check();
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
