// flash_backward: cutting a head into ranges of queries and keys changes no bit, and its scratch is
// what it says. That the gradients are right: tests/attention/backward.
#include "kernels/backward/flash_backward.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/flash_forward.h"
#include "kernels/head_problem.h"
#include "runtime/scratch.h"
#include "support/isas.h"

namespace headwise::kernels {
namespace {

using test::Array;

ConstMatrix in(const Array& x) { return x.view(); }

struct Head {
  static constexpr std::size_t kTq = 300, kTk = 600, kWidth = 20;
  Array q{DType::f32, kTq, kWidth}, k{DType::f32, kTk, kWidth}, v{DType::f32, kTk, kWidth},
      o{DType::f32, kTq, kWidth}, d_o{DType::f32, kTq, kWidth};
  std::vector<float> m = std::vector<float>(kTq), l = m, delta = m;
  BackwardHead head;

  Head() {
    q.fill(1);
    k.fill(2);
    v.fill(3);
    d_o.fill(4);
    FlashForwardArgs forward;
    forward.q = in(q);
    forward.k = in(k);
    forward.v = in(v);
    forward.o = o.view();
    forward.row_max = m.data();
    forward.row_sum = l.data();
    forward.T_q = forward.n_q = kTq;
    forward.T_k = kTk;
    forward.d_head = forward.d_v = kWidth;
    forward.terms.scale = 0.2;
    forward.terms.diagonal = 250;
    flash_forward(forward);
    backward_rows({DType::f32, in(o), in(d_o), m.data(), l.data(), delta.data(), kWidth, 0, kTq});
    head = {in(q), in(k), in(v), in(d_o), m.data(), l.data(), delta.data(), forward.terms, {}};
  }
  FlashBackwardArgs args() const {
    FlashBackwardArgs a;
    a.heads = &head;
    a.n_heads = 1;
    a.T_q = a.n_q = kTq;
    a.T_k = a.n_k = kTk;
    a.d_head = a.d_v = kWidth;
    return a;
  }
};

TEST(FlashBackward, RangesHaveTheBitsOfTheWhole) {
  test::for_each_isa([] {
    const Head one;
    Array dq(DType::f32, Head::kTq, Head::kWidth), dk(DType::f32, Head::kTk, Head::kWidth), dv = dk;
    Array dq_cut = dq, dk_cut = dk, dv_cut = dk;
    const Matrix to_dq = dq.view(), to_dq_cut = dq_cut.view();
    FlashBackwardArgs whole = one.args();
    whole.dq = &to_dq;
    whole.dk = dk.view();
    whole.dv = dv.view();
    flash_backward(whole);
    for (std::size_t t0 = 0; t0 < Head::kTq; t0 += 64) {
      FlashBackwardArgs part = one.args();
      part.dq = &to_dq_cut;
      part.t0 = t0;
      part.n_q = std::min<std::size_t>(64, Head::kTq - t0);
      flash_backward(part);
    }
    for (std::size_t j0 = 0; j0 < Head::kTk; j0 += 320) {
      FlashBackwardArgs part = one.args();
      part.dk = dk_cut.view();
      part.dv = dv_cut.view();
      part.j0 = j0;
      part.n_k = std::min<std::size_t>(320, Head::kTk - j0);
      flash_backward(part);
    }
    EXPECT_EQ(dq.bytes(), dq_cut.bytes());
    EXPECT_EQ(dk.bytes(), dk_cut.bytes());
    EXPECT_EQ(dv.bytes(), dv_cut.bytes());
  });
}

TEST(FlashBackward, TakesTheScratchThatItSays) {
  test::for_each_isa([] {
    const Head one;
    Array dq(DType::f32, Head::kTq, Head::kWidth), dk(DType::f32, Head::kTk, Head::kWidth), dv = dk;
    const Matrix to_dq = dq.view();
    FlashBackwardArgs args = one.args();
    args.dq = &to_dq;
    args.dk = dk.view();
    args.dv = dv.view();
    runtime::reset_scratch_peak();
    flash_backward(args);
    EXPECT_EQ(runtime::scratch_peak(), flash_backward_scratch(args));
  });
}

TEST(FlashBackward, RowsThatSeeNoKeyHaveInverseZero) {
  Array o(DType::f32, 3, 5), d_o(DType::f32, 3, 5);
  o.fill(1);
  d_o.fill(2);
  std::vector<float> m{1.5f, -INFINITY, 2.0f}, l{4.0f, 0.0f, 2.0f}, delta(3);
  backward_rows({DType::f32, in(o), in(d_o), m.data(), l.data(), delta.data(), 5, 0, 3});
  EXPECT_EQ(m, (std::vector<float>{1.5f, 0.0f, 2.0f}));
  EXPECT_EQ(l, (std::vector<float>{0.25f, 0.0f, 0.5f}));
  double expected = 0;
  for (std::size_t i = 0; i < 5; ++i) expected += o.at(2, i) * d_o.at(2, i);
  EXPECT_NEAR(delta[2], expected, 1e-6);
}

}  // namespace
}  // namespace headwise::kernels
