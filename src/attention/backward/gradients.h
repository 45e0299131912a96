// The tensors of a backward call, checked: what it reads beside q, k and v, and what it writes.
#pragma once

#include "attention/problem.h"
#include "headwise/attention_backward.h"

namespace headwise::attention {

struct BackwardCall {
  const ConstTensorView& q;
  const ConstTensorView& k;
  const ConstTensorView& v;
  const AttentionOptions& options;
  const AttentionState& state;
  const AttentionGradients& gradients;
};

struct BackwardInputs {
  Input d_o, o, row_max, row_sum;
  Input d_weights, d_average_weights;  // data null: none, or empty
};

// Data null: not wanted, or empty. Where q, k or a mask was broadcast, strides are 0.
struct Gradients {
  Output dq, dk, dv;
  Output d_masks[kernels::kMaxMasks];
};

BackwardInputs check_state(const Problem& problem, const AttentionState& state);

// Also that gradients share no element with an input, with each other or with themselves.
Gradients check_gradients(const Problem& problem, const BackwardCall& call);

}  // namespace headwise::attention
