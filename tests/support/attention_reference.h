// The definition of a whole scaled_dot_product_attention call, in double: broadcasting, grouped
// heads and masks worked out anew from the views, element by element.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "support/reference.h"
#include "support/strided_tensor.h"
#include "support/weight_rounding.h"

namespace headwise::test {

struct AttentionReference {
  Shape rows_shape;  // [..., n_heads, T_q]
  std::size_t T_q = 0, T_k = 0, d_v = 0, n_heads = 1;
  std::vector<ReferenceResult> heads;  // flat over the dims before T_q
  std::vector<double> score_size;      // of a head: bounds |score|, which rounding errors grow with
};

inline std::size_t dim_or_one(const ConstTensorView& view, std::size_t from_back) {
  return from_back < view.rank() ? view.shape.from_back(from_back) : 1;
}

// Element (x, y) of the matrix that `view` has for the dims `outer` of the result.
inline double broadcast_element(const ConstTensorView& view, const Shape& outer,
                                std::size_t n_heads, std::size_t x, std::size_t y) {
  Shape index(view.shape);
  for (std::size_t n = 0; n < view.rank(); ++n) {  // n dims before the last
    std::size_t i = n == 0 ? y : n == 1 ? x : outer.from_back(n - 2);
    const std::size_t size = view.shape.from_back(n);
    if (n == 2 && size > 1) i /= n_heads / size;  // a group of query heads shares it
    index[view.rank() - 1 - n] = size == 1 ? 0 : i;
  }
  return get(view, index);
}

inline double mask_term(const Mask& mask, const Shape& outer, std::size_t n_heads, std::size_t t,
                        std::size_t j) {
  const double x = broadcast_element(mask.view(), outer, n_heads, t, j);
  if (mask.kind() == Mask::Kind::bias) return x;
  return (x != 0) == (mask.kind() == Mask::Kind::keep) ? 0.0 : -kInfinity;
}

inline double score_term(const AttentionOptions& options, const AttentionReference& r,
                         const Shape& outer, std::size_t t, std::size_t j) {
  const std::size_t n_maskable = r.T_k - options.n_always_visible;
  if (j >= n_maskable) return 0.0;
  if (options.causal) {
    const auto last =
        *options.causal == CausalAlign::top_left
            ? static_cast<std::ptrdiff_t>(t)
            : static_cast<std::ptrdiff_t>(t + n_maskable) - static_cast<std::ptrdiff_t>(r.T_q);
    if (static_cast<std::ptrdiff_t>(j) > last) return -kInfinity;
  }
  double first = 0.0, second = 0.0;
  if (options.mask) first = mask_term(*options.mask, outer, r.n_heads, t, j);
  if (options.second_mask) second = mask_term(*options.second_mask, outer, r.n_heads, t, j);
  if (first == -kInfinity || second == -kInfinity) return -kInfinity;  // whatever the other says
  return first + second;
}

// A matrix of `view` as numbers, row by row.
inline std::vector<double> matrix_values(const ConstTensorView& view, const Shape& outer,
                                         std::size_t n_heads) {
  std::vector<double> values;
  for (std::size_t x = 0; x < view.shape.from_back(1); ++x)
    for (std::size_t y = 0; y < view.shape.from_back(0); ++y)
      values.push_back(broadcast_element(view, outer, n_heads, x, y));
  return values;
}

inline double largest_norm(const std::vector<double>& rows, std::size_t width) {
  double largest = 0.0;
  for (std::size_t at = 0; width > 0 && at < rows.size(); at += width) {
    double sum = 0.0;
    for (std::size_t i = 0; i < width; ++i) sum += rows[at + i] * rows[at + i];
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

inline AttentionReference reference_call(const ConstTensorView& q, const ConstTensorView& k,
                                         const ConstTensorView& v,
                                         const AttentionOptions& options = {}) {
  AttentionReference r;
  const std::size_t d_head = q.shape.from_back(0);
  r.T_q = q.shape.from_back(1);
  r.T_k = k.shape.from_back(1);
  r.d_v = v.shape.from_back(0);
  Shape outer;
  for (std::size_t n = std::max({q.rank(), k.rank(), v.rank()}); n-- > 2;) {
    std::size_t size = 1;
    for (const ConstTensorView* view : {&q, &k, &v})
      if (dim_or_one(*view, n) != 1)
        size = n == 2 ? std::max(size, dim_or_one(*view, n)) : dim_or_one(*view, n);
    outer.push_back(size);
  }
  if (!outer.empty()) r.n_heads = outer.from_back(0);
  r.rows_shape = outer;
  r.rows_shape.push_back(r.T_q);

  for_each_index(outer, [&](const Shape& at) {
    const auto vq = matrix_values(q, at, r.n_heads), vk = matrix_values(k, at, r.n_heads),
               vv = matrix_values(v, at, r.n_heads);
    ReferenceHead head;
    head.T_q = r.T_q;
    head.T_k = r.T_k;
    head.d_head = d_head;
    head.d_v = r.d_v;
    head.q = [&](std::size_t t, std::size_t i) { return vq[t * d_head + i]; };
    head.k = [&](std::size_t j, std::size_t i) { return vk[j * d_head + i]; };
    head.v = [&](std::size_t j, std::size_t i) { return vv[j * r.d_v + i]; };
    double largest_bias = 0.0;
    head.bias = [&](std::size_t t, std::size_t j) {
      const double term = score_term(options, r, at, t, j);
      if (std::isfinite(term)) largest_bias = std::max(largest_bias, std::abs(term));
      return term;
    };
    head.scale =
        options.scale.value_or(d_head == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(d_head)));
    head.dropout = {options.dropout_p, options.dropout_seed, r.heads.size()};
    r.heads.push_back(reference_attention(head));
    r.score_size.push_back(
        std::abs(head.scale) * largest_norm(vq, d_head) * largest_norm(vk, d_head) + largest_bias);
  });
  return r;
}

// Half a unit in the last place of 1.
inline double rounding(DType dtype) {
  return dtype == DType::f64    ? 0x1p-53
         : dtype == DType::f32  ? 0x1p-24
         : dtype == DType::bf16 ? 0x1p-8
                                : 0x1p-11;
}

// `found` against the exact result `expected` of a sum whose terms' sizes add up to `size`.
// Arithmetic is in f32 (f64 for f64): some roundings of the sums, a few of the scores in exp; then
// for bf16 and f16 one unit in the last place of the result. `weights` is what they were rounded
// by.
inline ::testing::AssertionResult close(double found, double expected, DType dtype, double size,
                                        double score_size, double weights = 0.0) {
  if (std::isnan(found) && std::isnan(expected)) return ::testing::AssertionSuccess();
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  double bound = rounding(dtype == DType::f64 ? dtype : DType::f32) * (16 + 2 * score_size) * size;
  bound += weights * size;
  if (half) bound += 2 * rounding(dtype) * std::abs(expected) + (dtype == DType::f16 ? 0x1p-24 : 0);
  if (std::abs(found - expected) <= bound) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << found << " is not within " << bound << " of " << expected;
}

inline Shape with(const Shape& shape, std::size_t last) {
  Shape longer(shape);
  longer.push_back(last);
  return longer;
}

// Every element of o.
inline void expect_output(const AttentionReference& r, const ConstTensorView& o) {
  ASSERT_EQ(o.shape, with(r.rows_shape, r.d_v));
  for_each_index(r.rows_shape, [&, row = std::size_t{0}](const Shape& at) mutable {
    const std::size_t head = row / r.T_q, t = row % r.T_q;
    ++row;
    const ReferenceResult& expected = r.heads[head];
    double size = 0.0;
    for (std::size_t i = 0; i < r.d_v; ++i)
      size = std::max(size, expected.magnitude[t * r.d_v + i]);
    for (std::size_t i = 0; i < r.d_v; ++i)
      ASSERT_TRUE(close(get(o, with(at, i)), expected.o[t * r.d_v + i], o.dtype, size,
                        r.score_size[head], weight_rounding(o.dtype)))
          << "o" << to_string(with(at, i));
  });
}

}  // namespace headwise::test
