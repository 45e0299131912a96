// The forward call for the layers above, which may know more than q, k and v show.
#pragma once

#include "attention/problem.h"
#include "headwise/dtype.h"

namespace headwise::attention {

// scaled_dot_product_attention for q, k and v that were widened from `bias_dtype`: a bias of the
// caller may still have that dtype, and is read as it is.
void forward(const Call& call, DType bias_dtype);

}  // namespace headwise::attention
