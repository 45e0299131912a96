// Rows of bf16 as pairs of neighbours along the dimension that is summed over, the operands of
// instructions which multiply pairs and add in f32: features 2c and 2c + 1 of queries and keys,
// keys 2c and 2c + 1 of weights and values. An odd last one is paired with 0. A packed pair is
// moved as the bits of a float.
#if defined(HEADWISE_KERNELS_BF16_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_BF16_PAIRS_INL_H_
#undef HEADWISE_KERNELS_BF16_PAIRS_INL_H_
#else
#define HEADWISE_KERNELS_BF16_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/convert-inl.h"
#include "kernels/mask_tile-inl.h"
#include "kernels/score_tile-inl.h"
#include "kernels/value_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE size_t n_pairs(size_t n) { return n / 2 + n % 2; }

// n elements `stride` apart side by side, then 0 up to `padded` elements. Bytes, for memory of any
// type.
HWY_INLINE void copy_row(const std::uint16_t* from, std::ptrdiff_t stride, size_t n, size_t padded,
                         void* to) {
  constexpr size_t kSize = sizeof(*from);
  auto* bytes = static_cast<unsigned char*>(to);
  if (stride == 1) {
    std::memcpy(bytes, from, n * kSize);
  } else {
    for (size_t i = 0; i < n; ++i)
      std::memcpy(bytes + i * kSize, from + static_cast<std::ptrdiff_t>(i) * stride, kSize);
  }
  std::memset(bytes + n * kSize, 0, (padded - n) * kSize);
}

HWY_INLINE const std::uint16_t* bf16_at(const ConstMatrix& x, size_t row, size_t column) {
  return static_cast<const std::uint16_t*>(x.data) + static_cast<std::ptrdiff_t>(row) * x.stride_t +
         static_cast<std::ptrdiff_t>(column) * x.stride_i;
}

HWY_INLINE Rows<std::uint16_t> copy_rows(const ConstMatrix& x, size_t r0, size_t n, size_t width,
                                         size_t padded, std::uint16_t* scratch) {
  for (size_t r = 0; r < n; ++r)
    copy_row(bf16_at(x, r0 + r, 0), x.stride_i, width, padded, scratch + r * padded);
  return {scratch, static_cast<std::ptrdiff_t>(padded)};
}

// Rows [r0, r0 + n) of x with `padded` elements, in place where that is what x has.
HWY_INLINE Rows<std::uint16_t> bf16_rows(const ConstMatrix& x, size_t r0, size_t n, size_t width,
                                         size_t padded, std::uint16_t* scratch) {
  if (x.stride_i == 1 && width == padded) return {bf16_at(x, r0, 0), x.stride_t};
  return copy_rows(x, r0, n, width, padded, scratch);
}

// qt[c][lane] = pair c of query t0 + lane; lanes from n_lanes on repeat the last. `rows` holds
// kLanes * kTileK floats.
template <int NV>
void pack_query_pairs(const ConstMatrix& q, size_t t0, size_t n_lanes, size_t d_head, float* rows,
                      float* qt) {
  constexpr size_t kLanes = kBlockLanes<float, NV>;
  const auto as_is = [](auto pairs) { return pairs; };
  if (in_pairs(bf16_at(q, t0, 0), q.stride_t, q.stride_i, d_head)) {
    const auto* pairs = reinterpret_cast<const float*>(bf16_at(q, t0, 0));
    rows_to_lanes(Strided<const float>{pairs, q.stride_t / 2}, n_lanes, d_head / 2, qt, kLanes,
                  as_is);
    return;
  }
  for (size_t i = 0; i < d_head; i += 2 * kTileK) {
    const size_t width = std::min(2 * kTileK, d_head - i);
    for (size_t r = 0; r < n_lanes; ++r)
      copy_row(bf16_at(q, t0 + r, i), q.stride_i, width, 2 * n_pairs(width), rows + r * kTileK);
    rows_to_lanes(Strided<const float>{rows, kTileK}, n_lanes, n_pairs(width), qt + i / 2 * kLanes,
                  kLanes, as_is);
  }
}

HWY_INLINE bool is_special(std::uint16_t x) { return (x & 0x7f80) == 0x7f80; }  // inf or NaN

inline bool any_special(Rows<std::uint16_t> x, size_t n, size_t width) {
  const hn::ScalableTag<std::uint16_t> d;
  const size_t N = hn::Lanes(d);
  const auto exponent = hn::Set(d, std::uint16_t{0x7f80});
  bool any = false;
  for (size_t j = 0; j < n; ++j) {
    const std::uint16_t* row = x.data + static_cast<std::ptrdiff_t>(j) * x.stride;
    size_t i = 0;
    for (; i + N <= width; i += N)
      any |= !hn::AllFalse(d, hn::Eq(hn::And(hn::LoadU(d, row + i), exponent), exponent));
    for (; i < width; ++i) any |= is_special(row[i]);
  }
  return any;
}

// As without_special_values.
inline Rows<std::uint16_t> without_specials(Rows<std::uint16_t> x, size_t n, size_t width,
                                            std::uint16_t* copy) {
  for (size_t j = 0; j < n; ++j) {
    const std::uint16_t* row = x.data + static_cast<std::ptrdiff_t>(j) * x.stride;
    for (size_t i = 0; i < width; ++i) copy[j * width + i] = is_special(row[i]) ? 0 : row[i];
  }
  return {copy, static_cast<std::ptrdiff_t>(width)};
}

#if HWY_TARGET == HWY_AVX3
HWY_INLINE size_t row_of_pairs(size_t d_v) { return hwy::RoundUpTo(d_v, 32); }

// to[c][i] = the values i of keys 2c and 2c + 1.
inline void pack_value_pairs(Rows<std::uint16_t> v, size_t n, size_t d_v, float* to) {
  alignas(64) static constexpr std::uint16_t kLower[] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                         37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                         11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i lower = _mm512_load_si512(kLower);
  const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
  for (size_t j = 0; j < n; j += 2, v.data += 2 * v.stride, to += row_of_pairs(d_v)) {
    for (size_t i = 0; i < d_v; i += 32) {
      const auto mask = static_cast<__mmask32>(low_bits(std::min<size_t>(d_v - i, 32)));
      const __m512i first = _mm512_maskz_loadu_epi16(mask, v.data + i);
      const __m512i second = j + 1 < n ? _mm512_maskz_loadu_epi16(mask, v.data + v.stride + i)
                                       : _mm512_setzero_si512();
      _mm512_store_si512(to + i, _mm512_permutex2var_epi16(first, lower, second));
      _mm512_store_si512(to + i + 16, _mm512_permutex2var_epi16(first, upper, second));
    }
  }
}
#endif

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_TARGET == HWY_AVX3
// Highway 1.0.3 has no name for AVX-512 with bf16: the functions that use it say so themselves.
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace headwise::kernels::HWY_NAMESPACE {

// to[c][lane] = the weights of keys 2c and 2c + 1, rounded to nearest even.
// `lanes` wide are rows of both.
template <int NV>
void pack_weight_pairs(const float* HWY_RESTRICT p, size_t n, size_t lanes,
                       float* HWY_RESTRICT to) {
  constexpr size_t N = kVectorLanes<float>;
  alignas(64) static constexpr std::uint16_t kInterleave[] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
  for (size_t c = 0; c < n_pairs(n); ++c, p += 2 * lanes, to += lanes) {
    const bool both = 2 * c + 1 < n;
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) {
      const __m512 second = both ? _mm512_load_ps(p + lanes + x * N) : _mm512_setzero_ps();
      const __m512bh pair = _mm512_cvtne2ps_pbh(second, _mm512_load_ps(p + x * N));
      _mm512_store_si512(to + x * N,
                         _mm512_permutexvar_epi16(interleave, reinterpret_cast<__m512i>(pair)));
    }
  }
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#endif  // HWY_AVX3

#endif  // include guard
