// Gradients of tensors that were broadcast: one for each batch index and head in working memory,
// then their sums, in ascending order.
#pragma once

#include <cstddef>

#include "attention/problem.h"
#include "runtime/scratch.h"

namespace headwise::attention {

// Where kernels write the gradient of a tensor [..., heads, T, width], heads being those of the
// problem.
struct PlacedGradient {
  TensorView wanted;  // as the caller gave it; data null: not wanted
  Output output;      // where kernels write: the caller's memory, or working memory
  std::size_t heads = 1, T = 0, width = 0;
  bool broadcast = false;  // working memory, to be summed
};

PlacedGradient place_gradient(const Problem& p, const TensorView& wanted, const Output& checked,
                              std::size_t heads, runtime::ScratchFrame& frame);

// Where the matrices of a tensor of this layout begin, one for each place of its leading dims.
struct Places {
  std::size_t n = 0;  // matrices
  std::size_t n_leading = 0;
  const Shape* shape = nullptr;
  const Strides* strides = nullptr;
};
Places places_of(const Shape& shape, const Strides& strides);
std::ptrdiff_t place_offset(const Places& places, std::size_t index);

// Sums what kernels wrote, if the gradient is that of a broadcast tensor.
void sum_broadcast(const Problem& p, const PlacedGradient& placed, bool on_calling_thread);

}  // namespace headwise::attention
