// Whether views share memory, decided exactly for everything that real code builds.
#pragma once

#include "headwise/tensor.h"

namespace headwise::attention {

// An element of `a` shares a byte with one of `b`. Slices of one packed tensor do not overlap
// although they interleave. Views must have passed core::check_view. Strides made to be hard to
// decide count as overlapping.
bool overlap(const ConstTensorView& a, const ConstTensorView& b);

// Two different indices of `view` lead to one element: a stride of 0, or dims that run into each
// other.
bool overlaps_itself(const ConstTensorView& view);

// Throws ArgumentError: every element of the output `name` has memory of its own, ...
void check_writable(const char* name, const TensorView& view);
// ... and shares none with `other`.
void check_apart(const char* name, const TensorView& view, const char* other_name,
                 const ConstTensorView& other);

}  // namespace headwise::attention
