// Scores of a few queries, d_head in lanes: each key is loaded once for all queries, from where it
// lies, widened on the way. A score is summed in 64 bytes of virtual lanes (16 of f32, 8 of f64),
// element i in lane i % 16, then along one tree, whatever the width of the real vectors:
//   in each block of 16 bytes  (0 + 2) + (1 + 3), f64 0 + 1;  of the blocks  (0 + 2) + (1 + 3)
#if defined(HEADWISE_KERNELS_DECODE_ROW_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_DECODE_ROW_SCORES_INL_H_
#undef HEADWISE_KERNELS_DECODE_ROW_SCORES_INL_H_
#else
#define HEADWISE_KERNELS_DECODE_ROW_SCORES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/convert-inl.h"
#include "kernels/mask_tile-inl.h"
#include "kernels/score_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
inline constexpr size_t kVirtualLanes = 64 / sizeof(T);
template <typename T>
inline constexpr size_t kParts = kVirtualLanes<T> / kVectorLanes<T>;  // vectors of virtual lanes

// Rows of a register block, beside 4 keys a row: 16 accumulators of 32 registers, 8 of 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kRowBlock = 4;
#else
inline constexpr int kRowBlock = 2;
#endif

template <typename T>
HWY_INLINE size_t padded(size_t width) {
  return (width + kVirtualLanes<T> - 1) / kVirtualLanes<T> * kVirtualLanes<T>;
}

// A vector of elements of any dtype, widened.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bfloat16* from) {
  return load_bf16(d, reinterpret_cast<const std::uint16_t*>(from));
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float16* from) {
  return load_f16(d, reinterpret_cast<const std::uint16_t*>(from));
}

// The first n >= 1 elements of a vector, the others 0; nothing behind them is read.
template <class D, typename E>
HWY_INLINE hn::Vec<D> load_first(D d, const E* from, size_t n) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if constexpr (std::is_same_v<E, hn::TFromD<D>>) return hn::MaskedLoad(hn::FirstN(d, n), d, from);
#endif
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if constexpr (sizeof(E) == 2) {
    const hn::Rebind<std::uint16_t, D> d16;
    const auto half =
        hn::MaskedLoad(hn::FirstN(d16, n), d16, reinterpret_cast<const std::uint16_t*>(from));
    if constexpr (std::is_same_v<E, bfloat16>) return widen_bf16(d, half);
    return widen_f16(d, half);
  }
#endif
  constexpr size_t N = hn::MaxLanes(D());
  if constexpr (N == 1) return load(d, from);
  HWY_ALIGN E copy[N] = {};
  std::memcpy(copy, from, n * sizeof(E));
  return load(d, copy);
}

#if HWY_TARGET != HWY_SCALAR
// Four accumulators, one a key, as vectors whose blocks hold the four keys' sums over the block:
// one vector of f32, two of f64.
template <class V>
HWY_INLINE void sum_in_blocks(hn::ScalableTag<float> d, const V* acc, V* sums) {
  const hn::RepartitionToWide<decltype(d)> dw;
  const V low =
      hn::Add(hn::InterleaveLower(d, acc[0], acc[1]), hn::InterleaveUpper(d, acc[0], acc[1]));
  const V high =
      hn::Add(hn::InterleaveLower(d, acc[2], acc[3]), hn::InterleaveUpper(d, acc[2], acc[3]));
  const auto low_pairs = hn::BitCast(dw, low), high_pairs = hn::BitCast(dw, high);
  sums[0] = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, low_pairs, high_pairs)),
                    hn::BitCast(d, hn::InterleaveUpper(dw, low_pairs, high_pairs)));
}
template <class V>
HWY_INLINE void sum_in_blocks(hn::ScalableTag<double> d, const V* acc, V* sums) {
  for (int pair = 0; pair < 2; ++pair)
    sums[pair] = hn::Add(hn::InterleaveLower(d, acc[2 * pair], acc[2 * pair + 1]),
                         hn::InterleaveUpper(d, acc[2 * pair], acc[2 * pair + 1]));
}
template <typename T>
inline constexpr size_t kQuad = sizeof(T) / 4;

// The sum of a vector's blocks.
template <class D, class V>
HWY_INLINE void store_block_sum(D d, V v, hn::TFromD<D>* to) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> dh;
    store_block_sum(dh, hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)), to);
  } else {
    hn::StoreU(v, d, to);
  }
}

template <int RB, size_t kKeys, typename T>
HWY_INLINE void add_products(const T* HWY_RESTRICT q, size_t q_stride,
                             const hn::Vec<hn::ScalableTag<T>> (&k)[kKeys],
                             hn::Vec<hn::ScalableTag<T>> (&acc)[RB][kKeys]) {
  const hn::ScalableTag<T> d;
  HWY_UNROLL(4)
  for (int r = 0; r < RB; ++r) {
    const auto query = hn::Load(d, q + static_cast<size_t>(r) * q_stride);
    HWY_UNROLL(8)
    for (size_t x = 0; x < kKeys; ++x) acc[r][x] = hn::MulAdd(k[x], query, acc[r][x]);
  }
}

// Scores of RB queries and 4 * G keys: s[r][x], rows of q `q_stride` apart, rows of s kLeafK.
template <int RB, int G, typename T, typename E>
HWY_INLINE void score_keys(const T* HWY_RESTRICT q, size_t q_stride, const E* const* keys,
                           size_t d_head, T* HWY_RESTRICT s) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr size_t N = kVectorLanes<T>, kKeys = 4 * G, kSums = G * kQuad<T>;
  V sums[kParts<T>][RB][kSums];
  for (size_t part = 0; part < kParts<T>; ++part) {
    V acc[RB][kKeys], k[kKeys];
    HWY_UNROLL(4)
    for (int r = 0; r < RB; ++r) {
      HWY_UNROLL(8)
      for (size_t x = 0; x < kKeys; ++x) acc[r][x] = hn::Zero(d);
    }
    size_t i = part * N;
    for (; i + N <= d_head; i += kVirtualLanes<T>) {
      HWY_UNROLL(8)
      for (size_t x = 0; x < kKeys; ++x) k[x] = load(d, keys[x] + i);
      add_products<RB, kKeys>(q + i, q_stride, k, acc);
    }
    if (i < d_head) {
      HWY_UNROLL(8)
      for (size_t x = 0; x < kKeys; ++x) k[x] = load_first(d, keys[x] + i, d_head - i);
      add_products<RB, kKeys>(q + i, q_stride, k, acc);
    }
    HWY_UNROLL(4)
    for (int r = 0; r < RB; ++r) {
      HWY_UNROLL(2)
      for (size_t g = 0; g < G; ++g) sum_in_blocks(d, acc[r] + 4 * g, sums[part][r] + g * kQuad<T>);
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < RB; ++r) {
    HWY_UNROLL(4)
    for (size_t x = 0; x < kSums; ++x) {
      for (size_t w = kParts<T> / 2; w != 0; w /= 2)
        for (size_t part = 0; part < w; ++part)
          sums[part][r][x] = hn::Add(sums[part][r][x], sums[part + w][r][x]);
      store_block_sum(d, sums[0][r][x], s + static_cast<size_t>(r) * kLeafK + x * (16 / sizeof(T)));
    }
  }
}
#else
// One lane, no blocks.
template <int RB, int G, typename T, typename E>
void score_keys(const T* q, size_t q_stride, const E* const* keys, size_t d_head, T* s) {
  const hn::ScalableTag<T> d;
  for (size_t r = 0; r < RB; ++r)
    for (size_t x = 0; x < 4 * G; ++x) {
      T lanes[kVirtualLanes<T>] = {};
      for (size_t i = 0; i < d_head; ++i) {
        T& lane = lanes[i % kVirtualLanes<T>];
        const auto query = hn::Set(d, q[r * q_stride + i]);
        lane = hn::GetLane(hn::MulAdd(load(d, keys[x] + i), query, hn::Set(d, lane)));
      }
      for (size_t w = kVirtualLanes<T> / 2; w != 0; w /= 2)
        for (size_t i = 0; i < w; ++i) lanes[i] += lanes[i + w];
      s[r * kLeafK + x] = lanes[0];
    }
}
#endif

// Rows that are read after those of a tile, fetched meanwhile: the one `distance` rows on, of the
// same matrix up to row `end` of the tile, then of another. One thread of Zen 5 reads 30 GB/s from
// memory; without this, arithmetic and reading took turns (bf16: 37 GB/s on two threads, now 70).
struct Ahead {
  const char* rows = nullptr;  // the tile's first row; null: fetch nothing
  std::ptrdiff_t stride = 0;   // bytes
  size_t width = 0;            // bytes of a row
  size_t distance = 0, end = 0;
  const char* then = nullptr;
  std::ptrdiff_t then_stride = 0;
  size_t then_last = 0;  // its last row

  HWY_INLINE void fetch(size_t j, size_t from, size_t bytes) const {
    j += distance;
    const char* row = rows + static_cast<std::ptrdiff_t>(j) * stride;
    if (j >= end)
      row = then + static_cast<std::ptrdiff_t>(std::min(j - end, then_last)) * then_stride;
    // Into L2. Past all caches, as for data that is read once, it was 5 to 15 % faster on Zen 5 but
    // took three times as long on Sapphire Rapids, whose L2 then fetches nothing by itself.
    for (size_t b = from; b < from + bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
  }
};
// Best of 2, 3, 4, 6 and 8 KiB over dtypes and groups; a whole tile evicts itself.
inline constexpr size_t kAheadBytes = 6144;

// Scores of n <= kTileK keys, s[r][j], rows of s kLeafK apart. Blocks of keys without one in
// `visible` are left out; up to the tile's end, s past n may be overwritten.
template <typename T, typename E>
HWY_NOINLINE void score_row_tile(const T* q, size_t n_rows, Rows<E> k, size_t n,
                                 std::uint64_t visible, size_t d_head, const Ahead& ahead, T* s) {
  constexpr size_t kKeys = 8;
  const size_t q_stride = padded<T>(d_head);
  for (size_t j = 0; j < n; j += kKeys) {
    if (ahead.rows != nullptr)
      for (size_t x = j; x < j + kKeys; ++x) ahead.fetch(x, 0, ahead.width);
    if ((visible >> j & low_bits(kKeys)) == 0) continue;
    const E* keys[kKeys];
    for (size_t x = 0; x < kKeys; ++x)  // the last key again where there is none
      keys[x] = k.data + static_cast<std::ptrdiff_t>(std::min(j + x, n - 1)) * k.stride;
    for (size_t r = 0; r < n_rows; r += kRowBlock)
      with_vectors<kRowBlock>(static_cast<int>(std::min<size_t>(n_rows - r, kRowBlock)),
                              [&](auto width) HWY_ATTR {
                                constexpr int RB = decltype(width)::value;
                                constexpr int G = 2 * RB <= kRowBlock || RB == 1 ? 2 : 1;
                                for (size_t x = 0; x < kKeys; x += 4 * G)
                                  score_keys<RB, G>(q + r * q_stride, q_stride, keys + x, d_head,
                                                    s + r * kLeafK + j + x);
                              });
  }
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
