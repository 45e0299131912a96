// What torch.nn.MultiheadAttention makes of the arguments of a call: layouts, masks, the causal
// hint. Everything is checked here, before any work.
#pragma once

#include <cstddef>
#include <optional>

#include "headwise/attention.h"
#include "headwise/attention_backward.h"
#include "headwise/multihead_attention.h"
#include "headwise/tensor.h"
#include "module/parameters.h"

namespace headwise::module {

// A query, key or value as [outer, inner, width]: [T, B] or [B, T] as the caller has it, B = 1 for
// unbatched input.
struct Rows {
  ConstTensorView view;  // rank 3
  bool batch_outer = false;

  std::size_t count() const { return view.shape[0] * view.shape[1]; }
};

Rows rows_of(const ConstTensorView& view, bool batch_first);

struct Call {
  Rows query, key, value;
  std::size_t B = 0, T_q = 0, T_k = 0;  // T_k: before columns are appended
  std::size_t n_appended = 0;           // add_bias_kv, add_zero_attn
  bool batched = true;
  Shape output_shape;
  std::optional<Shape> weights_shape;  // when asked for
  AttentionOptions attention;          // masks broadcast to [B, n_heads, T_q, T_k]
};

// Of the weights that the call returns; with none it doesn't matter.
bool per_head_weights(const Call& call);
// Weights of the call, or their gradients, as attention takes them: with a batch.
ConstTensorView with_batch(const Call& call, const ConstTensorView& weights);
TensorView with_batch(const Call& call, const TensorView& weights);

// The caller's gradients of masks, as views of what attention takes for masks.
void place_mask_gradients(const Sizes& sizes, const ForwardOptions& options, const Call& call,
                          const InputGradients& inputs, AttentionGradients& gradients);

struct NamedInput {
  const char* name;
  const ConstTensorView& view;
};

Call check_call(const MultiheadAttentionOptions& module, const Sizes& sizes,
                const NamedInput (&inputs)[3], const ForwardOptions& options);

struct NamedOutput {
  const char* name;
  const TensorView& view;
};

// Output and, when the call has them, weights: the caller's memory fits and is apart from the rest.
void check_outputs(const MultiheadAttentionOptions& module, const Call& call,
                   const NamedInput (&inputs)[3], const ForwardOptions& options,
                   const NamedOutput (&outputs)[2]);

}  // namespace headwise::module
