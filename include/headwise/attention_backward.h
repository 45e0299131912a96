// Gradients of scaled dot-product attention, in memory that grows with T_q + T_k:
//   P = softmax(scale * Q K^T + bias),  dV = P^T dO,  dS = P (dO V^T - rowsum(dO O)),
//   dQ = scale * dS K,  dK = scale * dS^T Q,  dbias = dS
// (Dao et al. 2022, "FlashAttention", appendix B.)
#pragma once

#include "headwise/attention.h"
#include "headwise/export.h"
#include "headwise/tensor.h"

namespace headwise {

// What the forward call left, and the gradient of its result.
struct AttentionState {
  ConstTensorView d_o;  // [..., n_heads, T_q, d_v], of any strides: 0 for one that is expanded
  ConstTensorView o;    // [..., n_heads, T_q, d_v]
  // AttentionExtras::row_max and row_sum. Apart, as a rounded log-sum-exp would lose rows whose
  // scores are huge.
  ConstTensorView row_max;  // [..., n_heads, T_q], f32 (f64 for f64)
  ConstTensorView row_sum;  // [..., n_heads, T_q]
  // Gradients of AttentionExtras::weights and average_weights, for a loss on attention itself; data
  // null: there is none. In the dtype of q.
  ConstTensorView d_weights{};          // [..., n_heads, T_q, T_k]
  ConstTensorView d_average_weights{};  // [..., T_q, T_k]
};

// What to compute; leave a view's data null for "not wanted", and its work is left out. Each has
// the shape and the dtype of what it is the gradient of, and is summed over what that was broadcast
// to. Written, not added to.
struct AttentionGradients {
  TensorView dq, dk, dv;
  TensorView d_mask, d_second_mask;  // of a Mask::bias
};

// Computes the gradients of the forward call with the same q, k, v and options.
//
//   q  [..., n_heads,    T_q, d_head]    k  [..., n_kv_heads, T_k, d_head]
//   o  [..., n_heads,    T_q, d_v]       v  [..., n_kv_heads, T_k, d_v]
//
// q, k, v, d_o and o have one dtype: f32, f64, bf16 or f16; sums are kept in f32 (f64 for f64) and
// rounded once. Dropout is that of the forward call: the seed draws the same weights. A masked key
// or value is absent: its pair adds nothing to any gradient, even where q, k, v or d_o is NaN; a
// query that sees no key has gradient 0. The same bits for any number of threads, alone or in a
// batch. First derivatives only: gradients of these gradients cannot be asked for. Throws
// ArgumentError or DTypeError naming the argument, what was found and what was expected, before
// anything is written.
HEADWISE_API void scaled_dot_product_attention_backward(const ConstTensorView& q,
                                                        const ConstTensorView& k,
                                                        const ConstTensorView& v,
                                                        const AttentionOptions& options,
                                                        const AttentionState& state,
                                                        const AttentionGradients& gradients);

}  // namespace headwise
