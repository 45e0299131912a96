// The backward call for the layers above, which may know more than q, k and v show.
#pragma once

#include "attention/backward/gradients.h"
#include "headwise/dtype.h"

namespace headwise::attention {

// scaled_dot_product_attention_backward for q, k and v that were widened from `bias_dtype`: a bias
// of the caller, and its gradient, may still have that dtype.
void backward(const BackwardCall& call, DType bias_dtype);

}  // namespace headwise::attention
