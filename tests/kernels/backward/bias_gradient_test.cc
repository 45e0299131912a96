// bias_gradient of one tile, of a row and of a column, against the sum of dS in double.
#include "kernels/backward/bias_gradient.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/head_problem.h"
#include "support/isas.h"

namespace headwise::kernels {
namespace {

using test::Array;

constexpr std::size_t kTq = 70, kTk = 90, kWidth = 7;

ConstMatrix in(const Array& x) { return x.view(); }

struct Head {
  Array q{DType::f32, kTq, kWidth}, k{DType::f32, kTk, kWidth}, v{DType::f32, kTk, kWidth},
      d_o{DType::f32, kTq, kWidth};
  std::vector<float> m = std::vector<float>(kTq, 0.5f), inverse = std::vector<float>(kTq, 0.25f),
                     delta = std::vector<float>(kTq, -0.125f);
  BackwardHead head;
  explicit Head(std::uint64_t seed) {
    q.fill(seed);
    k.fill(seed + 1);
    v.fill(seed + 2);
    d_o.fill(seed + 3);
    head = {in(q), in(k), in(v), in(d_o), m.data(), inverse.data(), delta.data(), {}, {}};
    head.terms.scale = 0.3;
    head.terms.diagonal = 30;
  }
  double ds(std::size_t t, std::size_t j) const {
    if (j > t + 30) return 0;
    double s = 0, dp = 0;
    for (std::size_t i = 0; i < kWidth; ++i) {
      s += 0.3 * q.at(t, i) * k.at(j, i);
      dp += d_o.at(t, i) * v.at(j, i);
    }
    return std::exp(s - 0.5) * 0.25 * (dp + 0.125);
  }
};

TEST(BiasGradient, SumsHeadsAndWhatIsShared) {
  test::for_each_isa([] {
    const Head first(1), second(11);
    const BackwardHead heads[] = {first.head, second.head};
    for (const bool one_row : {false, true})
      for (const bool one_column : {false, true}) {
        const std::size_t n_rows = one_row ? 1 : kTq, n_columns = one_column ? 1 : kTk;
        Array found(DType::f32, n_rows, n_columns, 3);
        BiasGradientArgs a;
        a.heads = heads;
        a.n_heads = 2;
        a.d_bias = found.view();
        a.one_row = one_row;
        a.one_column = one_column;
        a.d_head = a.d_v = kWidth;
        for (a.t0 = 0; a.t0 < kTq; a.t0 += one_row ? kTq : 64)
          for (a.j0 = 0; a.j0 < kTk; a.j0 += one_column ? kTk : 64) {
            a.n_q = one_row ? kTq : std::min<std::size_t>(64, kTq - a.t0);
            a.n_k = one_column ? kTk : std::min<std::size_t>(64, kTk - a.j0);
            bias_gradient(a);
          }
        for (std::size_t r = 0; r < n_rows; ++r)
          for (std::size_t c = 0; c < n_columns; ++c) {
            double sum = 0;
            for (std::size_t t = one_row ? 0 : r; t < (one_row ? kTq : r + 1); ++t)
              for (std::size_t j = one_column ? 0 : c; j < (one_column ? kTk : c + 1); ++j)
                sum += first.ds(t, j) + second.ds(t, j);
            ASSERT_NEAR(found.at(r, c), sum, 1e-4 * (1 + std::abs(sum))) << r << ", " << c;
          }
      }
  });
}

}  // namespace
}  // namespace headwise::kernels
