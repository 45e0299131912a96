// Sizes that fix the order of summation, and with it the bits: the same on every instruction set.
#pragma once

#include <cstddef>

namespace headwise::kernels {

// Keys of one score tile: with 64 queries of f32 it takes 16 KiB, a third of the smallest L1.
inline constexpr std::size_t kTileK = 64;
// Keys of one leaf, counted from key 0: a leaf is summed in ascending order, leaves are merged
// along a balanced binary tree, so that threads, splits and ranks may own any of them.
inline constexpr std::size_t kLeafK = 512;
static_assert(kLeafK % kTileK == 0);
// Heads with so few keys have short cuts, which share work over groups of queries. Not part of the
// order: their bits are the same.
inline constexpr std::size_t kFewKeys = 16;

}  // namespace headwise::kernels
