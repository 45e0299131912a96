// What diagonal and masks say about one tile of kLanes queries x kTileK keys: nothing to do,
// nothing hidden, or which keys are hidden from which query and what is added to the scores. A mask
// is read row by row as its owner stored it; 64 keys of a row become one word of bits, bias rows
// are transposed once.
#if defined(HEADWISE_KERNELS_MASK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_MASK_TILE_INL_H_
#undef HEADWISE_KERNELS_MASK_TILE_INL_H_
#else
#define HEADWISE_KERNELS_MASK_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/score_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kTileK == 64, "a row of a tile is one 64-bit word");

template <int NV, typename T>
struct MaskTile {
  static constexpr size_t kLanes = kBlockLanes<T, NV>;
  bool empty = false;            // no query sees any key: skip the tile
  bool any_hidden = false;       // some query does not see some key
  bool biased = false;           // bias is set
  std::uint64_t hidden[kLanes];  // bit j: key j0 + j is hidden from the query
  T* bias;                       // [kTileK][kLanes]
  T* rows;                       // [2][kLanes][kTileK] to transpose from
};

HWY_INLINE std::uint64_t low_bits(size_t n) {
  return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
}

// The first key that query t doesn't see because of the diagonal; keys past T_k don't matter.
HWY_INLINE size_t diagonal_end(const ScoreTerms& terms, size_t t) {
  constexpr std::ptrdiff_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  const auto row = static_cast<std::ptrdiff_t>(t);
  if (terms.diagonal > 0 && row >= kMost - terms.diagonal) return static_cast<size_t>(kMost);
  return static_cast<size_t>(std::max<std::ptrdiff_t>(row + terms.diagonal + 1, 0));
}

// Bits of the n <= 64 elements for which `test`, on vectors, holds.
template <class D, class Test>
HWY_INLINE std::uint64_t bits_where(D d, const hn::TFromD<D>* from, size_t n, Test&& test) {
  constexpr size_t N = hn::MaxLanes(D());
  std::uint64_t bits = 0;
  for (size_t j = 0; j < n; j += N) {  // reads up to a whole vector: rows are padded to 64
    // As wide as what is stored, or the load would have to wait for two stores.
    std::conditional_t<
        N <= 8, std::uint8_t,
        std::conditional_t<N == 16, std::uint16_t,
                           std::conditional_t<N == 32, std::uint32_t, std::uint64_t>>>
        part = 0;
    hn::StoreMaskBits(d, test(hn::LoadU(d, from + j)), reinterpret_cast<std::uint8_t*>(&part));
    bits |= (std::uint64_t{part} & low_bits(N)) << j;
  }
  return bits & low_bits(n);
}

// The n <= 8 bytes from `from`, and zeros. Never through memory: a load waits for narrower stores.
HWY_INLINE std::uint64_t load_bytes(const std::uint8_t* from, size_t n) {
  std::uint64_t bytes = 0;
  if (n == 8) {
    std::memcpy(&bytes, from, 8);
  } else if (n >= 4) {
    std::uint32_t first = 0, last = 0;
    std::memcpy(&first, from, 4);
    std::memcpy(&last, from + n - 4, 4);
    bytes = first | std::uint64_t{last} << (8 * (n - 4));
  } else {
    for (size_t j = 0; j < n; ++j) bytes |= std::uint64_t{from[j]} << (8 * j);
  }
  return bytes;
}

// Bit j: from[j] is not 0, for j < n <= 64.
HWY_INLINE std::uint64_t nonzero_bytes(const std::uint8_t* from, size_t n) {
  const hn::ScalableTag<std::uint8_t> d8;
#if HWY_IS_LITTLE_ENDIAN
  std::uint64_t set = 0;
  for (size_t j = 0; n < kTileK && j < n; j += 8) {
    std::uint64_t x = load_bytes(from + j, std::min<size_t>(n - j, 8));
    x |= x >> 4;
    x |= x >> 2;
    x |= x >> 1;
    x &= 0x0101010101010101u;
    set |= (x * 0x0102040810204080u) >> 56 << j;  // byte k to bit k
  }
  if (n < kTileK) return set;
#else
  std::uint8_t copy[kTileK] = {};
  from = static_cast<const std::uint8_t*>(std::memcpy(copy, from, n));
#endif
  return bits_where(d8, from, n, [&](auto x) { return hn::Ne(x, hn::Zero(d8)); });
}

// Which of n keys a boolean mask hides from query t.
HWY_INLINE std::uint64_t hidden_by_boolean(const MaskMatrix& mask, size_t t, size_t j0, size_t n) {
  const auto* row = static_cast<const std::uint8_t*>(mask.data) +
                    static_cast<std::ptrdiff_t>(t) * mask.stride_t +
                    static_cast<std::ptrdiff_t>(j0) * mask.stride_j;
  std::uint64_t set = 0;
  if (mask.stride_j == 0) {
    set = *row != 0 ? low_bits(n) : 0;
  } else if (mask.stride_j == 1) {
    set = nonzero_bytes(row, n);
  } else {
    for (size_t j = 0; j < n; ++j)
      set |= std::uint64_t{row[static_cast<std::ptrdiff_t>(j) * mask.stride_j] != 0} << j;
  }
  return mask.kind == MaskMatrix::Kind::ignore ? set : ~set & low_bits(n);
}

// Row t of the biases, added up into row[kTileK]; returns the keys that one of them hides. `second`
// is working memory.
template <typename T>
std::uint64_t bias_row(const ScoreTerms& terms, size_t t, size_t j0, size_t n, T* row, T* second) {
  const hn::ScalableTag<T> d;
  std::uint64_t hidden = 0;
  bool first = true;
  const auto is_hidden = [&](auto x) { return hn::Eq(x, hn::Set(d, kNegInf<T>)); };
  for (const MaskMatrix& mask : terms.masks) {
    if (mask.kind != MaskMatrix::Kind::bias) continue;
    const void* from = advance(mask.data, mask.dtype,
                               static_cast<std::ptrdiff_t>(t) * mask.stride_t +
                                   static_cast<std::ptrdiff_t>(j0) * mask.stride_j);
    T* to = first ? row : second;
    widen_row(from, mask.dtype, mask.stride_j, n, to);
    std::fill(to + n, to + kTileK, T{0});
    hidden |= bits_where(d, to, n, is_hidden);
    if (!first)
      for (size_t j = 0; j < kTileK; ++j) row[j] += second[j];
    first = false;
  }
  // A sum that reaches -inf hides too, as it does where masks are added before they are applied.
  return hidden | bits_where(d, row, n, is_hidden);
}

// A tile's only bias, where its rows can be read in place.
template <typename T>
HWY_INLINE const MaskMatrix* plain_bias(const ScoreTerms& terms) {
  const MaskMatrix* only = nullptr;
  for (const MaskMatrix& mask : terms.masks) {
    if (mask.kind != MaskMatrix::Kind::bias) continue;
    if (only != nullptr || mask.dtype != dtype_of_v<T> || mask.stride_j != 1) return nullptr;
    only = &mask;
  }
  return only;
}

// Whether a tile's transposed bias hides any key: most hide none, and rows of a mask are far apart,
// so that asking each of them costs twice as much.
template <int NV, typename T>
bool holds_negative_infinity(const T* bias, size_t n) {
  const hn::ScalableTag<T> d;
  const auto hidden = hn::Set(d, kNegInf<T>);
  auto any = hn::Ne(hidden, hidden);  // none
  for (const T* end = bias + n * kBlockLanes<T, NV>; bias != end; bias += kVectorLanes<T>)
    any = hn::Or(any, hn::Eq(hn::Load(d, bias), hidden));
  return !hn::AllFalse(d, any);
}

template <int NV, typename T>
void fill_bias(const ScoreTerms& terms, const TilePlace& at, size_t n, MaskTile<NV, T>& tile) {
  const hn::ScalableTag<T> d;
  constexpr size_t kLanes = MaskTile<NV, T>::kLanes;
  T* second = tile.rows + kLanes * kTileK;
  bool same_for_all = true;
  for (const MaskMatrix& mask : terms.masks)
    same_for_all &= mask.kind != MaskMatrix::Kind::bias || mask.stride_t == 0;
  if (same_for_all) {
    const std::uint64_t hidden = bias_row(terms, at.t0, at.j0, n, tile.rows, second);
    for (size_t r = 0; r < at.n_lanes; ++r) tile.hidden[r] |= hidden;
    for (size_t j = 0; j < at.n; ++j)
      for (size_t r = 0; r < kLanes; r += hn::Lanes(d))
        hn::Store(hn::Set(d, tile.rows[j]), d, tile.bias + j * kLanes + r);
    return;
  }
  if (at.n_lanes < kLanes) std::fill_n(tile.bias, kTileK * kLanes, T{0});
  const Strided<T> to{tile.bias, kLanes};
  if (const MaskMatrix* mask = plain_bias<T>(terms)) {
    const T* from = static_cast<const T*>(mask->data) +
                    static_cast<std::ptrdiff_t>(at.t0) * mask->stride_t +
                    static_cast<std::ptrdiff_t>(at.j0);
    transpose<>(Strided<const T>{from, mask->stride_t}, at.n_lanes, n, to);
    std::fill(tile.bias + n * kLanes, tile.bias + at.n * kLanes, T{0});
    if (!holds_negative_infinity<NV>(tile.bias, n)) return;
    if (n == kTileK) {
      for (size_t r = 0; r < at.n_lanes; ++r)
        tile.hidden[r] |= bits_where(d, from + static_cast<std::ptrdiff_t>(r) * mask->stride_t, n,
                                     [&](auto x) { return hn::Eq(x, hn::Set(d, kNegInf<T>)); });
      return;
    }
  }
  for (size_t r = 0; r < at.n_lanes; ++r)
    tile.hidden[r] |= bias_row(terms, at.t0 + r, at.j0, n, tile.rows + r * kTileK, second);
  transpose<>(Strided<const T>{tile.rows, kTileK}, at.n_lanes, at.n, to);
}

template <int NV, typename T>
void fill_mask_tile(const ScoreTerms& terms, const TilePlace& at, MaskTile<NV, T>& tile) {
  using Kind = MaskMatrix::Kind;
  tile.empty = tile.any_hidden = tile.biased = false;
  const size_t n = terms.n_maskable <= at.j0 ? 0 : std::min(at.n, terms.n_maskable - at.j0);
  bool boolean = false;
  for (const MaskMatrix& mask : terms.masks) {
    boolean |= mask.kind == Kind::keep || mask.kind == Kind::ignore;
    tile.biased |= mask.kind == Kind::bias;
  }
  tile.biased &= n != 0;
  const bool below = diagonal_end(terms, at.t0) >= at.j0 + n;
  if (n == 0 || (below && !boolean && !tile.biased)) return;

  std::fill_n(tile.hidden, at.n_lanes, std::uint64_t{0});
  for (size_t r = 0; !below && r < at.n_lanes; ++r) {
    const size_t end = diagonal_end(terms, at.t0 + r);
    const size_t visible = end <= at.j0 ? 0 : std::min(n, end - at.j0);
    tile.hidden[r] = low_bits(n) & ~low_bits(visible);
  }
  for (const MaskMatrix& mask : terms.masks) {
    if (mask.kind != Kind::keep && mask.kind != Kind::ignore) continue;
    std::uint64_t hidden = 0;
    for (size_t r = 0; r < at.n_lanes; ++r) {
      if (r == 0 || mask.stride_t != 0) hidden = hidden_by_boolean(mask, at.t0 + r, at.j0, n);
      tile.hidden[r] |= hidden;
    }
  }
  if (tile.biased) fill_bias(terms, at, n, tile);

  std::uint64_t all = ~std::uint64_t{0}, any = 0;
  for (size_t r = 0; r < at.n_lanes; ++r) {
    all &= tile.hidden[r];
    any |= tile.hidden[r];
  }
  tile.empty = (all & low_bits(at.n)) == low_bits(at.n);
  tile.any_hidden = any != 0;
  // Lanes without a query see what the last one sees.
  std::fill(tile.hidden + at.n_lanes, tile.hidden + MaskTile<NV, T>::kLanes,
            tile.hidden[at.n_lanes - 1]);
}

// Bits of N queries as words of T's size: words[w][x] holds those of keys from w * kBits on.
template <typename T, size_t kWords, size_t N, typename U>
HWY_INLINE void split_words(const std::uint64_t* hidden, U (&words)[kWords][N]) {
#if HWY_TARGET != HWY_SCALAR && HWY_IS_LITTLE_ENDIAN
  if constexpr (kWords == 2) {
    const hn::ScalableTag<U> du;
    const auto first = hn::LoadU(du, reinterpret_cast<const U*>(hidden));
    const auto second = hn::LoadU(du, reinterpret_cast<const U*>(hidden) + N);
    hn::Store(hn::ConcatEven(du, second, first), du, words[0]);
    hn::Store(hn::ConcatOdd(du, second, first), du, words[1]);
    return;
  }
#endif
  for (size_t w = 0; w < kWords; ++w)
    for (size_t x = 0; x < N; ++x) words[w][x] = static_cast<U>(hidden[x] >> (w * 64 / kWords));
}

// s = hidden ? -inf : s + bias, and the largest of each lane. Selected, never multiplied: what a
// hidden key holds does not matter.
template <int NV, typename T>
void apply_mask_tile(const MaskTile<NV, T>& tile, size_t n, T* s, T* tile_max) {
  using U = hwy::MakeUnsigned<T>;
  const hn::ScalableTag<T> d;
  const hn::ScalableTag<U> du;
  constexpr size_t N = kVectorLanes<T>, kLanes = NV * N, kBits = sizeof(T) * 8;
  for (size_t r = 0; r < kLanes; r += N) {
    auto largest = hn::Set(d, kNegInf<T>);
    if (tile.biased && !tile.any_hidden) {
      for (size_t x = r; x < n * kLanes; x += kLanes) {
        const auto score = hn::Add(hn::Load(d, s + x), hn::Load(d, tile.bias + x));
        hn::Store(score, d, s + x);
        largest = max_unless_nan(score, largest);
      }
      hn::Store(largest, d, tile_max + r);
      continue;
    }
    HWY_ALIGN U words[kTileK / kBits][N];
    split_words<T>(tile.hidden + r, words);
    for (size_t j = 0; j < n; ++j) {
      auto score = hn::Load(d, s + j * kLanes + r);
      if (tile.biased) score = hn::Add(score, hn::Load(d, tile.bias + j * kLanes + r));
      const auto bit = hn::Set(du, static_cast<U>(U{1} << (j % kBits)));
      const auto hidden = hn::TestBit(hn::Load(du, words[j / kBits]), bit);
      score = hn::IfThenElse(hn::RebindMask(d, hidden), hn::Set(d, kNegInf<T>), score);
      hn::Store(score, d, s + j * kLanes + r);
      largest = max_unless_nan(score, largest);
    }
    hn::Store(largest, d, tile_max + r);
  }
}

// Cuts a tile into runs, so that a diagonal costs its triangle, not its square. Returns their
// number.
template <int NV, typename T>
size_t runs_of(const MaskTile<NV, T>& tile, size_t n, KeyRun (&runs)[kMaxRuns]) {
  if (!tile.any_hidden) {
    runs[0] = {0, n, 0};
    return 1;
  }
  constexpr size_t N = kVectorLanes<T>;
  std::uint64_t dead[NV];  // keys that no query of the vector sees
  for (int x = 0; x < NV; ++x) {
    dead[x] = ~std::uint64_t{0};
    for (size_t r = 0; r < N; ++r) dead[x] &= tile.hidden[x * N + r];
  }
  size_t n_runs = 0;
  for (size_t j = 0; j < n; j += kRunKeys) {
    const size_t m = std::min(kRunKeys, n - j);
    int skipped = 0;
    while (skipped < NV && (dead[skipped] >> j & low_bits(m)) == low_bits(m)) ++skipped;
    if (skipped == NV) continue;
    if (n_runs != 0 && runs[n_runs - 1].skipped == skipped &&
        runs[n_runs - 1].j + runs[n_runs - 1].n == j) {
      runs[n_runs - 1].n += m;
    } else {
      runs[n_runs++] = {j, m, skipped};
    }
  }
  return n_runs;
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
