// Attention weights of a few queries from what flash_decode has left: see decode_weights.cc.
#pragma once

#include <cstddef>

#include "kernels/attention_weights.h"

namespace headwise::kernels {

// Keys [j0, j0 + n) of w; j0 is a multiple of kTileK, args.n_q at most kMostDecodeRows. Row max
// and row sum must be flash_decode's, whose scores are formed again, bit for bit.
void decode_weights(const AttentionWeightsArgs& args, std::size_t j0, std::size_t n);

}  // namespace headwise::kernels
