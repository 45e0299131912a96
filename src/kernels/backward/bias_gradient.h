// Gradient of an additive bias, summed over what it was broadcast to: see bias_gradient.cc.
#pragma once

#include <cstddef>

#include "kernels/backward/flash_backward.h"

namespace headwise::kernels {

struct BiasGradientArgs {
  DType dtype = DType::f32;             // of q, k, v and d_o
  const BackwardHead* heads = nullptr;  // of any batch, in the order in which they are added
  std::size_t n_heads = 0;
  Matrix d_bias;                  // [T_q or 1, n_maskable or 1]
  DType bias_dtype = DType::f32;  // of d_bias
  bool one_row = false;           // all queries share one row of the bias
  bool one_column = false;        // all keys share one column
  std::size_t d_head = 0, d_v = 0;
  std::size_t t0 = 0, n_q = 0;  // one tile's, or all if they share a row
  std::size_t j0 = 0, n_k = 0;  // one tile's, or all that a mask may hide if they share a column
};

void bias_gradient(const BiasGradientArgs& args);

}  // namespace headwise::kernels
