// The definition of attention for one head, in double, element by element: what every kernel and
// every path is compared with. Slow on purpose; nothing here is shared with the library's
// arithmetic but the reference generator of dropout. Needs no GoogleTest: `headwise verify` uses
// it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "core/philox.h"
#include "headwise/dtype.h"
#include "kernels/flash_forward.h"

namespace headwise::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Element `index` of an array of any floating or boolean dtype.
inline double element(const void* data, DType dtype, std::ptrdiff_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::f64:
      return static_cast<const double*>(data)[index];
    case DType::bf16:
      return static_cast<float>(static_cast<const bfloat16*>(data)[index]);
    case DType::f16:
      return static_cast<float>(static_cast<const float16*>(data)[index]);
    default:
      return static_cast<const std::uint8_t*>(data)[index] != 0;
  }
}

struct ReferenceHead {
  using Element = std::function<double(std::size_t, std::size_t)>;
  std::size_t T_q = 0, T_k = 0, d_head = 0, d_v = 0;
  Element q;     // (t, i)
  Element k;     // (j, i)
  Element v;     // (j, i)
  Element bias;  // (t, j): what is added to the score; -inf hides the key; none: nothing
  double scale = 1.0;
  kernels::Dropout dropout;
};

struct ReferenceResult {
  std::vector<double> o;          // [T_q, d_v]
  std::vector<double> p;          // [T_q, T_k] weights after dropout
  std::vector<double> m, l;       // [T_q]; a row that sees no key: -inf and 0; NaN row: NaN
  std::vector<double> magnitude;  // [T_q, d_v] sum of |p v|: the scale of rounding errors
};

// p of one row before dropout, and its m and l.
inline void reference_row(const ReferenceHead& a, std::size_t t, double* p, double& m, double& l) {
  std::vector<char> hidden(a.T_k, 0);
  m = -kInfinity;
  l = 0;
  bool seen = false;
  for (std::size_t j = 0; j < a.T_k; ++j) {
    const double bias = a.bias ? a.bias(t, j) : 0.0;
    hidden[j] = bias == -kInfinity;
    if (hidden[j]) continue;
    seen = true;
    double dot = 0;
    for (std::size_t i = 0; i < a.d_head; ++i) dot += a.q(t, i) * a.k(j, i);
    p[j] = (a.d_head == 0 ? 0.0 : dot * a.scale) + bias;
    m = std::max(m, p[j]);  // a NaN score is never larger
  }
  for (std::size_t j = 0; j < a.T_k; ++j)
    if (!hidden[j]) l += p[j] = std::exp(p[j] - m);
  for (std::size_t j = 0; j < a.T_k; ++j) p[j] = hidden[j] ? 0.0 : p[j] / l;
  if (seen && std::isnan(l)) m = kNaN;
}

inline ReferenceResult reference_attention(const ReferenceHead& a) {
  ReferenceResult r;
  r.o.assign(a.T_q * a.d_v, 0.0);
  r.magnitude.assign(a.T_q * a.d_v, 0.0);
  r.p.assign(a.T_q * a.T_k, 0.0);
  r.m.assign(a.T_q, 0.0);
  r.l.assign(a.T_q, 0.0);
  for (std::size_t t = 0; t < a.T_q; ++t) {
    double* p = r.p.data() + t * a.T_k;
    reference_row(a, t, p, r.m[t], r.l[t]);
    for (std::size_t j = 0; j < a.T_k; ++j) {
      if (a.bias && a.bias(t, j) == -kInfinity) continue;  // absent, not multiplied by zero
      const kernels::Dropout& drop = a.dropout;
      if (drop.p > 0)
        p[j] *=
            core::dropout_keeps(drop.p, drop.seed, drop.head, t, j) ? 1.0 / (1.0 - drop.p) : 0.0;
      for (std::size_t i = 0; i < a.d_v; ++i) {
        r.o[t * a.d_v + i] += p[j] * a.v(j, i);
        r.magnitude[t * a.d_v + i] += std::abs(p[j] * a.v(j, i));
      }
    }
  }
  return r;
}

// What the diagonal and the masks of a kernel's arguments add to score (t, j).
inline double bias_of(const kernels::ScoreTerms& terms, std::size_t t, std::size_t j) {
  if (j >= terms.n_maskable) return 0.0;
  if (terms.diagonal != kernels::kNoDiagonal &&
      static_cast<std::ptrdiff_t>(j) > static_cast<std::ptrdiff_t>(t) + terms.diagonal)
    return -kInfinity;
  double sum = 0;
  for (const kernels::MaskMatrix& mask : terms.masks) {
    using Kind = kernels::MaskMatrix::Kind;
    if (mask.kind == Kind::none) continue;
    const double x = element(mask.data, mask.dtype,
                             static_cast<std::ptrdiff_t>(t) * mask.stride_t +
                                 static_cast<std::ptrdiff_t>(j) * mask.stride_j);
    if (mask.kind == Kind::bias ? x == -kInfinity : (x != 0) == (mask.kind == Kind::ignore))
      return -kInfinity;
    if (mask.kind == Kind::bias) sum += x;
  }
  return sum;
}

inline ReferenceHead reference_of(const kernels::FlashForwardArgs& args) {
  const auto matrix = [dtype = args.dtype](const kernels::ConstMatrix& x) {
    return [x, dtype](std::size_t t, std::size_t i) {
      return element(x.data, dtype,
                     static_cast<std::ptrdiff_t>(t) * x.stride_t +
                         static_cast<std::ptrdiff_t>(i) * x.stride_i);
    };
  };
  const kernels::ScoreTerms terms = args.terms;
  return {args.T_q,       args.T_k,
          args.d_head,    args.d_v,
          matrix(args.q), matrix(args.k),
          matrix(args.v), [terms](std::size_t t, std::size_t j) { return bias_of(terms, t, j); },
          terms.scale,    args.dropout};
}

}  // namespace headwise::test
