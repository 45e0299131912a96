#include "attention/layout.h"

#include <algorithm>

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
  // An empty tensor may have null data and any strides: no position is computed from them.
  const bool empty = std::find(shape.begin(), shape.end(), 0u) != shape.end();
  const auto stride = [&](std::size_t from_back) {
    return empty ? 0 : stride_of(shape, strides, from_back);
  };
  Layout layout;
  const std::size_t n_batch_dims = full.size() < 3 ? 0 : full.size() - 3;
  for (std::size_t n = 0; n < n_batch_dims; ++n)
    if (full[n] != 1) layout.batch.push_back(stride(axes.n_inner + (n_batch_dims - 1 - n)));
  layout.h = stride(axes.h);
  layout.t = stride(axes.t);
  layout.i = stride(axes.i);
  return layout;
}

}  // namespace headwise::attention
