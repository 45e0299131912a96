// Attention weights from scores, row max and row sum: see attention_weights.cc.
#pragma once

#include <cstddef>

#include "kernels/args.h"

namespace headwise::kernels {

// One head: what flash_forward has read and left.
struct WeightsHead {
  ConstMatrix q;                  // [T_q, d_head]
  ConstMatrix k;                  // [T_k, d_head]
  const void* row_max = nullptr;  // [T_q] as flash_forward wrote it
  const void* row_sum = nullptr;  // [T_q]
  ScoreTerms terms;
  Dropout dropout;
};

// w[t, j] = mean over the heads of p[t, j]; one head: its weights.
struct AttentionWeightsArgs {
  DType dtype = DType::f32;  // of q, k and w; arithmetic in f32, in f64 for f64
  const WeightsHead* heads = nullptr;
  std::size_t n_heads = 1;
  Matrix w;  // [T_q, T_k]
  std::size_t T_q = 0, T_k = 0, d_head = 0;
  std::size_t t0 = 0, n_q = 0;  // the rows to compute: [t0, t0 + n_q)
};

void attention_weights(const AttentionWeightsArgs& args);

}  // namespace headwise::kernels
