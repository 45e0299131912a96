// exp(x) for x <= 0, the softmax's only elementary function: one reduction and one polynomial, so
// every instruction set with fused multiply-add gives the same bits.
//   x = n ln2 + r, |r| <= ln2 / 2;  exp(x) = 2^n (1 + r + r^2 q(r))
// Error: f32 at most 1.1 ulp, f64 at most 1.5 ulp. exp(0) is exactly 1, exp(-inf) exactly 0;
// results below the normal range are 0; NaN stays NaN.
#if defined(HEADWISE_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_EXP_INL_H_
#undef HEADWISE_KERNELS_EXP_INL_H_
#else
#define HEADWISE_KERNELS_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  // Added to t, it leaves n + 127 in the low bits: the exponent of 2^n.
  static constexpr float kMagic = 0x1.8p23f + 127.0f;
  static constexpr float kLog2E = 0x1.715476p0f;
  static constexpr float kLn2High = 0x1.63p-1f;  // 9 bits: n * kLn2High is exact without FMA
  static constexpr float kLn2Low = -0x1.bd0106p-13f;
  static constexpr float kLowest = -0x1.5d589ep6f;  // ln of the smallest normal number
  static constexpr int kMantissa = 23;
  // Minimax for the relative error on |r| <= 0.3469: 3.1e-9.
  static constexpr float kQ[] = {1.3814475399e-03f, 8.3687763059e-03f, 4.1668393815e-02f,
                                 1.6666520142e-01f, 4.9999993415e-01f};
};

template <>
struct ExpConstants<double> {
  static constexpr double kMagic = 0x1.8p52 + 1023.0;
  static constexpr double kLog2E = 0x1.71547652b82fep0;
  static constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kLowest = -0x1.6232bdd7abcd2p9;
  static constexpr int kMantissa = 52;
  // Taylor: the next term is below 4e-18.
  static constexpr double kQ[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                  1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                  1.0 / 120,        1.0 / 24,        1.0 / 6,        0.5};
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, C::kMagic);
  const V t = hn::MulAdd(x, hn::Set(d, C::kLog2E), magic);
  const V n = hn::Sub(t, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, C::kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), r);
  V q = hn::Set(d, C::kQ[0]);
  HWY_UNROLL(16)
  for (size_t i = 1; i < sizeof(C::kQ) / sizeof(T); ++i) q = hn::MulAdd(q, r, hn::Set(d, C::kQ[i]));
  const V y = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, T{1}));
  // A product, not an addition to the exponent: it keeps a NaN a NaN.
  const V power = hn::BitCast(d, hn::ShiftLeft<C::kMantissa>(hn::BitCast(du, t)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::kLowest)), hn::Mul(y, power));
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
