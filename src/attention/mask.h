// What a mask of a call means, checked once and never expanded: strides into the caller's memory.
#pragma once

#include <cstddef>
#include <string_view>

#include "attention/layout.h"
#include "headwise/attention.h"
#include "kernels/args.h"

namespace headwise::attention {

struct CheckedMask {
  kernels::MaskMatrix::Kind kind = kernels::MaskMatrix::Kind::none;
  Input entries;
};

// What a mask has to fit.
struct MaskTarget {
  DType q_dtype = DType::f32;
  Shape scores;  // [..., n_heads, T_q, T_k], without always visible keys
};

// Throws ArgumentError or DTypeError, naming `argument`.
CheckedMask check_mask(std::string_view argument, const Mask& mask, const MaskTarget& target);

// The mask of one (batch index, head).
kernels::MaskMatrix mask_matrix(const CheckedMask& mask, const Shape& position, std::size_t h);

}  // namespace headwise::attention
