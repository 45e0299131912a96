// The views and options of a call, checked, as sizes and layouts. Everything that can be wrong with
// a call is found here, before any work is done or a byte written.
#pragma once

#include <cstddef>
#include <optional>

#include "attention/layout.h"
#include "attention/mask.h"
#include "headwise/attention.h"
#include "kernels/args.h"

namespace headwise::attention {

struct Problem {
  DType dtype = DType::f32;      // of q, k, v, o and the weights
  DType row_dtype = DType::f32;  // of row max, row sum and log-sum-exp
  Shape o_shape;                 // [..., n_heads, T_q, d_v]; no n_heads when q, k and v have rank 2
  Shape batch;                   // the dims of o before n_heads, without those of size 1
  std::size_t n_batch = 1;       // their product
  std::size_t n_heads = 1, n_kv_heads = 1;
  std::size_t group = 1;  // query heads that share one key and value head
  std::size_t T_q = 0, T_k = 0, d_head = 0, d_v = 0;
  Input q, k, v;
  CheckedMask masks[kernels::kMaxMasks];
  kernels::ScoreTerms terms;  // without the masks, which differ from head to head
  kernels::Dropout dropout;   // without the head
};

struct Outputs {
  Output o;
  Output row_max, row_sum, log_sum_exp;
  Output weights, average_weights;
};

// Checks q, k, v and options. A bias may have `bias_dtype` instead of q's dtype.
Problem make_problem(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options, std::optional<DType> bias_dtype = {},
                     bool own_memory = false);

// All tensors of a call, for what concerns them together.
struct Call {
  const ConstTensorView& q;
  const ConstTensorView& k;
  const ConstTensorView& v;
  const AttentionOptions& options;
  const TensorView& o;
  const AttentionExtras& extras;
  // q, k, v and o are memory of the layer above: of good form, and apart from everything else.
  bool own_memory = false;
};

// Checks the outputs against the problem, and that they share no element with an input, with each
// other or with themselves.
Outputs check_outputs(const Problem& problem, const Call& call);

}  // namespace headwise::attention
