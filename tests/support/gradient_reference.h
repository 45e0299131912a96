// The definition of the gradients of a whole scaled_dot_product_attention call, in double, pair by
// pair: what is hidden is left out, what was broadcast is summed.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "core/philox.h"
#include "gtest/gtest.h"
#include "headwise/attention_backward.h"
#include "support/attention_reference.h"
#include "support/strided_tensor.h"

namespace headwise::test {

// A gradient, and the sizes of the terms of its sums: what rounding errors grow with.
struct ReferenceGradient {
  Shape shape;
  std::vector<double> value, size;  // row-major

  ReferenceGradient() = default;
  explicit ReferenceGradient(const Shape& of)
      : shape(of), value(element_count(of), 0.0), size(element_count(of), 0.0) {}

  // Adds to the element that (x, y) of the matrix for `outer` was broadcast from.
  void add(const Shape& outer, std::size_t n_heads, std::size_t x, std::size_t y, double term,
           double magnitude) {
    std::size_t at = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const std::size_t n = shape.size() - 1 - d;  // dims before the last
      std::size_t i = n == 0 ? y : n == 1 ? x : outer.from_back(n - 2);
      if (n == 2 && shape[d] > 1) i /= n_heads / shape[d];
      at = at * shape[d] + (shape[d] == 1 ? 0 : i);
    }
    value[at] += term;
    size[at] += magnitude;
  }
};

struct ReferenceGradients {
  ReferenceGradient dq, dk, dv, d_mask, d_second_mask;
  double score_size = 0.0;
};

inline ReferenceGradients reference_gradients(const ConstTensorView& q, const ConstTensorView& k,
                                              const ConstTensorView& v,
                                              const AttentionOptions& options,
                                              const ConstTensorView& d_o,
                                              const ConstTensorView& d_weights = {},
                                              const ConstTensorView& d_average = {}) {
  const AttentionReference r = reference_call(q, k, v, options);
  ReferenceGradients g;
  g.dq = ReferenceGradient(q.shape);
  g.dk = ReferenceGradient(k.shape);
  g.dv = ReferenceGradient(v.shape);
  if (options.mask) g.d_mask = ReferenceGradient(options.mask->view().shape);
  if (options.second_mask) g.d_second_mask = ReferenceGradient(options.second_mask->view().shape);
  const std::size_t d_head = q.shape.from_back(0), n_maskable = r.T_k - options.n_always_visible;
  const double scale =
      options.scale.value_or(d_head == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(d_head)));
  const Shape outer_shape(r.rows_shape.begin(), r.rows_shape.end() - 1);
  std::size_t head = 0;
  for_each_index(outer_shape, [&](const Shape& at) {
    g.score_size = std::max(g.score_size, r.score_size[head]);
    const auto vq = matrix_values(q, at, r.n_heads), vk = matrix_values(k, at, r.n_heads),
               vv = matrix_values(v, at, r.n_heads), vd = matrix_values(d_o, at, r.n_heads);
    for (std::size_t t = 0; t < r.T_q; ++t) {
      std::vector<double> s(r.T_k), dp(r.T_k), dp_size(r.T_k), factor(r.T_k, 1.0);
      double m = -kInfinity, l = 0.0, delta = 0.0, delta_size = 0.0;
      for (std::size_t j = 0; j < r.T_k; ++j) {
        const double term = score_term(options, r, at, t, j);
        s[j] = -kInfinity;
        if (term == -kInfinity) continue;
        double dot = 0.0;
        for (std::size_t i = 0; i < d_head; ++i) dot += vq[t * d_head + i] * vk[j * d_head + i];
        s[j] = (d_head == 0 ? 0.0 : dot * scale) + term;
        m = std::isnan(s[j]) ? kNaN : std::max(m, s[j]);
        if (options.dropout_p > 0)
          factor[j] = core::dropout_keeps(options.dropout_p, options.dropout_seed, head, t, j)
                          ? 1.0 / (1.0 - options.dropout_p)
                          : 0.0;
        for (std::size_t i = 0; i < r.d_v; ++i) {
          dp[j] += vd[t * r.d_v + i] * vv[j * r.d_v + i];
          dp_size[j] += std::abs(vd[t * r.d_v + i] * vv[j * r.d_v + i]);
        }
        if (d_weights.data != nullptr) {
          const double extra = broadcast_element(d_weights, at, r.n_heads, t, j);
          dp[j] += extra;
          dp_size[j] += std::abs(extra);
        }
        if (d_average.data != nullptr) {
          const Shape batch(at.begin(), at.end() - 1);  // no heads
          Shape index(batch);
          index.push_back(t);
          index.push_back(j);
          const double extra = get(d_average, index) / static_cast<double>(r.n_heads);
          dp[j] += extra;
          dp_size[j] += std::abs(extra);
        }
      }
      const auto seen = [&](std::size_t j) {
        return score_term(options, r, at, t, j) != -kInfinity;
      };
      for (std::size_t j = 0; j < r.T_k; ++j)
        if (seen(j)) l += std::exp(s[j] - m);
      for (std::size_t j = 0; j < r.T_k; ++j) {
        if (!seen(j)) continue;
        delta += std::exp(s[j] - m) / l * factor[j] * dp[j];
        delta_size += std::exp(s[j] - m) / l * factor[j] * dp_size[j];
      }
      for (std::size_t j = 0; j < r.T_k; ++j) {
        if (!seen(j)) continue;
        const double p = std::exp(s[j] - m) / l, ds = p * (factor[j] * dp[j] - delta),
                     ds_size = p * (factor[j] * dp_size[j] + delta_size);
        for (std::size_t i = 0; i < d_head; ++i) {
          const double xq = vq[t * d_head + i], xk = vk[j * d_head + i];
          g.dq.add(at, r.n_heads, t, i, scale * ds * xk, std::abs(scale * ds_size * xk));
          g.dk.add(at, r.n_heads, j, i, scale * ds * xq, std::abs(scale * ds_size * xq));
        }
        for (std::size_t i = 0; i < r.d_v; ++i) {
          const double term = p * factor[j] * vd[t * r.d_v + i];
          g.dv.add(at, r.n_heads, j, i, term, std::abs(term));
        }
        if (j >= n_maskable) continue;
        if (options.mask) g.d_mask.add(at, r.n_heads, t, j, ds, ds_size);
        if (options.second_mask) g.d_second_mask.add(at, r.n_heads, t, j, ds, ds_size);
      }
    }
    ++head;
  });
  return g;
}

// Every element of a gradient of a call on `dtype`.
inline void expect_gradient(const char* name, const ReferenceGradient& expected,
                            const ConstTensorView& found, double score_size, DType dtype) {
  ASSERT_EQ(found.shape, expected.shape);
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  std::size_t n = 0;
  for_each_index(found.shape, [&](const Shape& at) {
    // delta is from o as it was rounded, of weights that may have been.
    const std::size_t element = n++;
    ASSERT_TRUE(close(get(found, at), expected.value[element], found.dtype, expected.size[element],
                      score_size, half ? 4 * rounding(dtype) : 0.0))
        << name << to_string(at);
  });
}

// Forward, then backward with every gradient that can be asked for.
struct BackwardRun {
  StridedTensor o, row_max, row_sum, dq, dk, dv, d_mask, d_second_mask;

  BackwardRun(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
              const AttentionOptions& options, const ConstTensorView& d_o,
              Memory memory = Memory::contiguous, const ConstTensorView& d_weights = {},
              const ConstTensorView& d_average = {})
      : dq(q.dtype, q.shape, memory), dk(k.dtype, k.shape, memory), dv(v.dtype, v.shape, memory) {
    const DType rows = q.dtype == DType::f64 ? DType::f64 : DType::f32;
    const Shape o_shape = attention_output_shape(q, k, v, options);
    const Shape rows_shape(o_shape.begin(), o_shape.end() - 1);
    o = StridedTensor(q.dtype, o_shape);
    row_max = StridedTensor(rows, rows_shape);
    row_sum = StridedTensor(rows, rows_shape);
    AttentionExtras extras;
    extras.row_max = row_max.view();
    extras.row_sum = row_sum.view();
    scaled_dot_product_attention(q, k, v, options, o.view(), extras);
    AttentionGradients wanted{dq.view(), dk.view(), dv.view(), {}, {}};
    const auto want_mask = [memory](const std::optional<Mask>& mask, StridedTensor& d_mask_of,
                                    TensorView& view) {
      if (!mask || mask->kind() != Mask::Kind::bias) return;
      d_mask_of = StridedTensor(mask->view().dtype, mask->view().shape, memory);
      view = d_mask_of.view();
    };
    want_mask(options.mask, d_mask, wanted.d_mask);
    want_mask(options.second_mask, d_second_mask, wanted.d_second_mask);
    scaled_dot_product_attention_backward(q, k, v, options,
                                          {d_o, o, row_max, row_sum, d_weights, d_average}, wanted);
  }

  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    for (const StridedTensor* part : {&dq, &dk, &dv, &d_mask, &d_second_mask}) {
      if (part->view().data == nullptr) continue;
      const std::vector<std::byte> bits = part->bits();
      all.insert(all.end(), bits.begin(), bits.end());
    }
    return all;
  }

  void expect(const ReferenceGradients& expected) const {
    const auto check = [&](const char* name, const ReferenceGradient& gradient,
                           const StridedTensor& found) {
      if (found.view().data == nullptr) return;
      expect_gradient(name, gradient, found, expected.score_size, o.view().dtype);
      ASSERT_TRUE(found.surroundings_untouched()) << name;
    };
    check("dq", expected.dq, dq);
    check("dk", expected.dk, dk);
    check("dv", expected.dv, dv);
    check("d_mask", expected.d_mask, d_mask);
    check("d_second_mask", expected.d_second_mask, d_second_mask);
  }
};

}  // namespace headwise::test
