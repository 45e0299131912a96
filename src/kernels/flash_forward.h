// Forward attention for a block of queries of one (batch, head): see flash_forward.cc.
#pragma once

#include <cstddef>

#include "kernels/args.h"

namespace headwise::kernels {

struct FlashForwardArgs {
  DType dtype = DType::f32;  // of q, k, v and o; sums in f32, in f64 for f64
  ConstMatrix q;             // [T_q, d_head]
  ConstMatrix k;             // [T_k, d_head]
  ConstMatrix v;             // [T_k, d_v]
  Matrix o;                  // [T_q, d_v]
  void* row_max = nullptr;   // [T_q] contiguous f32 (f64 for f64), may be null
  void* row_sum = nullptr;   // [T_q], may be null
  std::size_t T_q = 0, T_k = 0, d_head = 0, d_v = 0;
  std::size_t t0 = 0, n_q = 0;  // the rows to compute: [t0, t0 + n_q)
  ScoreTerms terms;
  Dropout dropout;
};

// How many queries a call should be given on the active instruction set; any n_q works.
std::size_t flash_forward_block(DType dtype);

// Bytes of working memory that a call takes on the active instruction set.
std::size_t flash_forward_scratch(const FlashForwardArgs& args);

void flash_forward(const FlashForwardArgs& args);

}  // namespace headwise::kernels
