// Scaled dot-product attention without the projections:
//   O = softmax(scale * Q K^T + bias) V, one softmax per query row, over the keys that a mask
//   allows.
// (Vaswani et al. 2017, "Attention is all you need", equation 1.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "headwise/export.h"
#include "headwise/tensor.h"

namespace headwise {

// Where the diagonal of a causal mask sits when T_q != T_k.
enum class CausalAlign : std::uint8_t {
  top_left,      // row t sees keys [0, t]; what torch calls is_causal
  bottom_right,  // row t sees keys [0, t + T_k - T_q]; decoding with a cache
};

// What a mask's entries mean is part of its type: torch's two functions and the papers disagree.
class Mask {
 public:
  enum class Kind : std::uint8_t { keep, ignore, bias };

  static Mask keep(ConstTensorView allowed) { return {Kind::keep, allowed}; }  // true: takes part
  static Mask ignore(ConstTensorView hidden) {
    return {Kind::ignore, hidden};
  }  // true: it does not
  static Mask bias(ConstTensorView added) {
    return {Kind::bias, added};
  }  // added to the scaled score;
     // -inf hides the key
  Kind kind() const { return kind_; }
  const ConstTensorView& view() const { return view_; }

 private:
  Mask(Kind kind, ConstTensorView view) : kind_(kind), view_(view) {}
  Kind kind_;
  ConstTensorView view_;
};

struct AttentionOptions {
  std::optional<double> scale{};        // default 1 / sqrt(d_head); any value
  std::optional<CausalAlign> causal{};  // default: no causal mask
  std::optional<Mask> mask{};  // broadcasts to [..., n_heads, T_q, T_k]; never expanded in memory
  std::optional<Mask> second_mask{};  // both must allow a key, both biases are added
  // The last keys that every query sees, whatever masks and causal say: masks have T_k minus this
  // many columns, and the diagonal is placed as if these keys were not there.
  std::size_t n_always_visible = 0;
  double dropout_p = 0.0;          // in [0, 1], on the weights; kept ones are divided by 1 - p
  std::uint64_t dropout_seed = 0;  // the same seed drops the same weights
  bool enable_gqa = true;          // false: n_heads must equal n_kv_heads (or one of them be 1)
};

// What else a call can return; leave a view's data null for "not wanted".
struct AttentionExtras {
  // The state of each row's softmax, kept apart because m + log(l) loses the row when its scores
  // are huge. f32 (f64 for f64 inputs).
  TensorView row_max;  // [..., n_heads, T_q] m: largest score, -inf for a row with no allowed key
  TensorView row_sum;  // [..., n_heads, T_q] l: sum of exp(score - m), 0 for such a row
  TensorView log_sum_exp;  // [..., n_heads, T_q] m + log(l), natural log
  // Softmax weights after dropout, in the dtype of q.
  TensorView weights;          // [..., n_heads, T_q, T_k]
  TensorView average_weights;  // [..., T_q, T_k]: mean over heads, without holding n_heads matrices
};

// The shape of o: the broadcast leading dims, then n_heads, T_q, d_v. Checks q, k and v as the call
// does.
HEADWISE_API Shape attention_output_shape(const ConstTensorView& q, const ConstTensorView& k,
                                          const ConstTensorView& v,
                                          const AttentionOptions& options = {});

// Computes o, and whatever of `extras` has data.
//
//   q  [..., n_heads,    T_q, d_head]
//   k  [..., n_kv_heads, T_k, d_head]   n_heads is a multiple of n_kv_heads, or 1
//   v  [..., n_kv_heads, T_k, d_v]
//   o  [..., n_heads,    T_q, d_v]
//
// Rank 2 or more; leading dims broadcast as in torch. One dtype for q, k, v, o: f32, f64, bf16 or
// f16; sums are kept in f32 (f64 for f64). Any strides. Masks: boolean, a floating dtype equal to
// q's, or f32 beside bf16 and f16. A row with no allowed key gives o = 0. A masked key or value is
// never read into the result, even if it is NaN; NaN that a row may see comes out as NaN. Outputs
// share no element with an input or with each other. Throws ArgumentError or DTypeError naming the
// argument, what was found and what was expected, before anything is written.
HEADWISE_API void scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                               const ConstTensorView& v,
                                               const AttentionOptions& options, const TensorView& o,
                                               const AttentionExtras& extras = {});

// The same into a new tensor.
HEADWISE_API Tensor scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                                 const ConstTensorView& v,
                                                 const AttentionOptions& options = {});

}  // namespace headwise
