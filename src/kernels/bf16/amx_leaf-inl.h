// A leaf's keys and values as AMX reads them: rows of keys, and rows of V^T.
#if defined(HEADWISE_KERNELS_BF16_AMX_LEAF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_BF16_AMX_LEAF_INL_H_
#undef HEADWISE_KERNELS_BF16_AMX_LEAF_INL_H_
#else
#define HEADWISE_KERNELS_BF16_AMX_LEAF_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/bf16/amx_tiles-inl.h"
#include "kernels/bf16/pairs-inl.h"
#include "kernels/flash_forward.h"
#include "kernels/tiles.h"
#include "kernels/transpose-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16,amx-tile,amx-bf16")
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kTilesPerLeaf = kLeafK / kTileK;

// A leaf's keys and values in the order of tiles, made when the first block asks for them.
struct LeafTiles {
  std::uint16_t* keys;  // [kTilesPerLeaf][kTileK][d_head padded to 32], zeros beyond the tile
  float* values;        // [kTilesPerLeaf][d_v padded to 16][kTileK / 2] pairs of V^T
  std::uint16_t* rows;  // [kTileK][d_v] on the way
  float* pairs;         // [kTileK / 2][row_of_pairs(d_v)] on the way
  size_t made[kTilesPerLeaf];   // the first key of the tile that is there
  bool special[kTilesPerLeaf];  // V had infinities or NaN, which are 0 in `values`
};

HWY_INLINE size_t padded_head(size_t d_head) { return hwy::RoundUpTo(d_head, kTileElements); }
HWY_INLINE size_t padded_values(size_t d_v) { return hwy::RoundUpTo(d_v, kTileRows); }
HWY_INLINE size_t tile_of_leaf(size_t j) { return j % kLeafK / kTileK; }

// Rows a multiple of 1 KiB apart share a quarter of L1's sets or fewer.
HWY_INLINE bool keys_in_place(const FlashForwardArgs& a, size_t n) {
  return n == kTileK && a.k.stride_i == 1 && a.d_head % kTileElements == 0 &&
         a.k.stride_t % 512 != 0;
}

// The keys of a tile, padded_head(d_head) wide, up to whole tiles of AMX.
inline Rows<std::uint16_t> keys_of(const FlashForwardArgs& a, const TilePlace& at,
                                   const LeafTiles& leaf) {
  if (keys_in_place(a, at.n)) return {bf16_at(a.k, at.j0, 0), a.k.stride_t};
  const size_t width = padded_head(a.d_head);
  return {leaf.keys + tile_of_leaf(at.j0) * kTileK * width, static_cast<std::ptrdiff_t>(width)};
}

inline void copy_keys(const FlashForwardArgs& a, const TilePlace& at, std::uint16_t* to) {
  const size_t width = padded_head(a.d_head);
  for (size_t j = 0; j < at.n; ++j, to += width) {
    const std::uint16_t* row = bf16_at(a.k, at.j0 + j, 0);
    if (a.k.stride_i != 1) {
      copy_row(row, a.k.stride_i, a.d_head, width, to);
      continue;
    }
    for (size_t i = 0; i < width; i += kTileElements) {
      const auto mask = static_cast<__mmask32>(low_bits(std::min(a.d_head - i, kTileElements)));
      _mm512_storeu_si512(to + i, _mm512_maskz_loadu_epi16(mask, row + i));
    }
  }
  std::fill_n(to, (kTileK - at.n) * width, std::uint16_t{0});
}

inline void transpose_values(const FlashForwardArgs& a, const TilePlace& at, LeafTiles& leaf) {
  const size_t tile = tile_of_leaf(at.j0), row = row_of_pairs(a.d_v);
  Rows<std::uint16_t> v = bf16_rows(a.v, at.j0, at.n, a.d_v, a.d_v, leaf.rows);
  leaf.special[tile] = any_special(v, at.n, a.d_v);
  if (leaf.special[tile]) v = without_specials(v, at.n, a.d_v, leaf.rows);
  pack_value_pairs(v, at.n, a.d_v, leaf.pairs);
  std::fill(leaf.pairs + n_pairs(at.n) * row, leaf.pairs + kTileK / 2 * row, 0.0f);
  float* to = leaf.values + tile * padded_values(a.d_v) * kTileK / 2;
  transpose(Strided<const float>{leaf.pairs, static_cast<std::ptrdiff_t>(row)}, kTileK / 2,
            padded_values(a.d_v), Strided<float>{to, kTileK / 2});
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#endif  // HWY_AVX3

#endif  // include guard
