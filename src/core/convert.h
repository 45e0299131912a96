// Elements of one floating dtype as another.
#pragma once

#include "headwise/tensor.h"

namespace headwise::core {

// Copies `from` into `to`: the same shape, any strides, floating dtypes or equal ones. Rounds to
// nearest, ties to even; f64 reaches the 16-bit types through f32, as in torch.
void convert(const ConstTensorView& from, const TensorView& to);

Tensor converted(const ConstTensorView& from, DType dtype);

}  // namespace headwise::core
