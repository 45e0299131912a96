#include "attention/layout.h"

namespace headwise::attention {
namespace {

// The stride of the dim that is `from_back` places before the last.
std::ptrdiff_t stride_of(const Shape& shape, const Strides& strides, std::size_t from_back) {
  if (from_back >= shape.size() || shape.from_back(from_back) == 1) return 0;
  return strides.from_back(from_back);
}

}  // namespace

Layout broadcast_layout(const Shape& shape, const Strides& strides, const Axes& axes,
                        const Shape& full) {
  Layout layout;
  const std::size_t n_batch_dims = full.size() < 3 ? 0 : full.size() - 3;
  for (std::size_t n = 0; n < n_batch_dims; ++n)
    if (full[n] != 1)
      layout.batch.push_back(stride_of(shape, strides, axes.n_inner + (n_batch_dims - 1 - n)));
  layout.h = stride_of(shape, strides, axes.h);
  layout.t = stride_of(shape, strides, axes.t);
  layout.i = stride_of(shape, strides, axes.i);
  return layout;
}

}  // namespace headwise::attention
