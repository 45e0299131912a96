// What a MultiheadAttention holds.
#pragma once

#include <cstdint>
#include <optional>

#include "headwise/multihead_attention.h"
#include "module/parameters.h"
#include "module/projection.h"
#include "module/torch_rules.h"

namespace headwise {

struct MultiheadAttention::State {
  explicit State(const MultiheadAttentionOptions& wanted);

  // What forward does once everything is checked. Heads in scratch, of the fastest dtype ...
  void run(module::Call& call, std::uint64_t dropout_seed, const TensorView& output,
           const TensorView& weights) const;
  // ... or in the caller's memory, with the rows' softmax states where they have data.
  void run(module::Call& call, std::uint64_t dropout_seed, const module::Heads& heads,
           AttentionExtras extras, const TensorView& output, const TensorView& weights) const;

  // Packed at once, so that forward() only reads and may run on several threads.
  void replace(module::Parameters changed);

  MultiheadAttentionOptions options;
  module::Sizes sizes;
  module::Parameters parameters;
  std::optional<module::Projections> projections;  // always there once constructed
  bool training = true;
  std::uint64_t n_changes = 0;  // of parameters
};

}  // namespace headwise
