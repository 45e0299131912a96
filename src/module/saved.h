// What a forward call keeps for backward.
#pragma once

#include <cstdint>

#include "headwise/buffer.h"
#include "headwise/multihead_attention.h"
#include "module/projection.h"
#include "module/torch_rules.h"

namespace headwise {

struct SavedForward::State {
  // For a call of heads of `dtype`; in `memory`, if it is large enough.
  State(const module::Call& call, const module::Sizes& sizes, DType dtype, Buffer memory);

  module::Call call;
  module::Heads heads;
  TensorView row_max, row_sum;  // [B, n_heads, T_q]
  Buffer memory;                // of the heads and rows
  // Whose call it was, and how often its parameters had changed.
  const void* module = nullptr;
  std::uint64_t n_changes = 0;
  ConstTensorView inputs[3];  // query, key and value as the caller has them
  ForwardOptions options;
};

}  // namespace headwise
