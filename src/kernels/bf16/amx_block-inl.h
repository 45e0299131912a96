// What AMX does with a tile of keys for a block of queries.
//   S^T = K Q^T, 32 keys x 32 queries at a time   P^T = exp2(c S^T - b), rounded to bf16
//   O^T = V^T P^T, over up to 256 keys at a time
// c is scale * log2 e. b follows the largest c S^T only when a weight would be beyond 2^8: what was
// summed is rescaled seldom, and once more at the end of a leaf, to the largest. m and l are f32,
// of scores and weights that have not been rounded to bf16.
#if defined(HEADWISE_KERNELS_BF16_AMX_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_BF16_AMX_BLOCK_INL_H_
#undef HEADWISE_KERNELS_BF16_AMX_BLOCK_INL_H_
#else
#define HEADWISE_KERNELS_BF16_AMX_BLOCK_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/bf16/amx_leaf-inl.h"
#include "kernels/bf16/amx_tiles-inl.h"
#include "kernels/bf16/pairs-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/flash_block-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16,amx-tile,amx-bf16")
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

inline constexpr size_t kStepKeys = 32;      // two tiles of keys
inline constexpr size_t kPendingKeys = 256;  // whose weights wait for their values; divides kLeafK
inline constexpr double kLog2E = 1.44269504088896340736;
inline constexpr float kLn2 = 0x1.62e43p-1f;
inline constexpr float kMargin = 8;  // log2 of the largest weight

// 2^x; 2^-inf is 0. Minimax for the relative error on [0, 1), 2.6e-6: far below a bf16's, and near
// enough to f32's for sums of it.
HWY_INLINE __m512 exp2_of(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(1.353416803e-02f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.201146156e-02f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.414427554e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.930038351e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.000002593e+00f));
  return _mm512_scalef_ps(p, x);
}

// Pairs of bf16, the first in the low half.
HWY_INLINE __m512i rounded_pair(__m512 first, __m512 second) {
  alignas(64) static constexpr std::uint16_t kInterleave[] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
  return _mm512_permutexvar_epi16(interleave,
                                  reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}

HWY_INLINE VF rounded(VF x) {
  const auto bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.raw));
  return VF{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}

// For one block of a call, or shared by all of them.
struct AmxMemory {
  float* qt;  // [padded_head / 2][kLanes] pairs; this block's
  float* p;   // [kPendingKeys / 2][kLanes] pairs
  LeafTiles* leaf;
};

// Blocks of `kNV` tiles of 16 queries.
template <int NumVectors>
class AmxTile {
 public:
  using T = float;
  using Memory = AmxMemory;
  static constexpr int kNV = NumVectors, NV = kNV;
  static constexpr size_t N = kVectorLanes<float>, kLanes = NV * N;
  static_assert(N == kTileRows);
  static constexpr int kColumns = NV == 1 ? 1 : 2;  // tiles of queries at a time

  AmxTile(const FlashForwardArgs& args, const Workspace<float>& workspace, const Memory& memory)
      : a_(args), w_(workspace), memory_(memory) {
    for (const MaskMatrix& mask : args.terms.masks)
      scaled_first_ |= mask.kind == MaskMatrix::Kind::bias;
    const double scale = args.d_head == 0 ? 0.0 : args.terms.scale;
    scaled_first_ |= !(scale > 0);
    factor_ = scaled_first_ ? 1.0f : static_cast<float>(scale * kLog2E);
    to_log2_ = scaled_first_ ? static_cast<float>(kLog2E) : 1.0f;
  }

  void pack_queries(size_t t0, size_t n_lanes) {
    pack_query_pairs<NV>(a_.q, t0, n_lanes, a_.d_head, w_.rows, memory_.qt);
    std::fill(memory_.qt + n_pairs(a_.d_head) * kLanes,
              memory_.qt + padded_head(a_.d_head) / 2 * kLanes, 0.0f);
  }

  void run(const TilePlace& at, const MaskTile<NV, float>& mask, State<float>& state) {
    if (!state.started) {
      start_state(state, kLanes);
      std::fill_n(w_.base, kLanes, kNegInf<float>);
      has_output_ = false;
      pending_begin_ = pending_end_ = at.j0;
    }
    if (at.j0 != pending_end_ || at.j0 % kPendingKeys == 0) add_pending(state);
    if (pending_begin_ == pending_end_) pending_begin_ = pending_end_ = at.j0;
    LeafTiles& leaf = *memory_.leaf;
    const size_t tile = tile_of_leaf(at.j0);
    if (leaf.made[tile] != at.j0) {
      if (!keys_in_place(a_, at.n))
        copy_keys(a_, at, leaf.keys + tile * kTileK * padded_head(a_.d_head));
      transpose_values(a_, at, leaf);
      leaf.made[tile] = at.j0;
    }
    const Rows<std::uint16_t> keys = keys_of(a_, at, leaf);
    const bool whole = mask.any_hidden || mask.biased || scaled_first_;
    if (whole) {
      score(keys, at.n, w_.s);
      if (scaled_first_) scale_values(a_.d_head == 0 ? 0.0 : a_.terms.scale, at.n * kLanes, w_.s);
      if (mask.any_hidden || mask.biased) apply_mask_tile(mask, at.n, w_.s, w_.tile_max);
    }
    for (size_t j = 0; j < at.n; j += kStepKeys) {
      const size_t n = std::min(kStepKeys, at.n - j);
      float* s = w_.s + (whole ? j * kLanes : 0);  // one step's place in L1 for all of them
      if (!whole) score(rows_from(keys, j), n, s);
      rebase(s, n, state);
      if (scaled_first_)
        weights<true>(s, n, state.l);
      else
        weights<false>(s, n, state.l);
      pending_end_ = at.j0 + j + n;
    }
    if (leaf.special[tile]) {
      add_pending(state);
      add_specials(at, mask, state.o);
    }
  }

  // m and l, and o with it, become those of the true largest score. Its weight, which is 1 where b
  // is that score, has been rounded like the others: a row that it dominates is o / l only if l has
  // its rounding too.
  void end_leaf(State<float>& state) {
    add_pending(state);
    const DF d;
    const Scale<float> scaled(a_.terms.scale);
    for (size_t r = 0; r < kLanes; r += N) {
      const VF m = hn::Load(d, state.m + r), base = hn::Load(d, w_.base + r);
      const VF l = hn::Load(d, state.l + r);
      const VF below = hn::NegMulAdd(finite_base(d, m), hn::Set(d, factor_), base);
      const VF decay = decay_of(below);
      const VF p{exp2_of(hn::Mul(below, hn::Set(d, -to_log2_)).raw)};
      const VF consistent = hn::Div(l, hn::Add(l, hn::Sub(rounded(p), p)));
      hn::Store(hn::Mul(l, decay), d, state.l + r);
      if (!scaled_first_)
        hn::Store(hn::IfThenElse(hn::Eq(m, hn::Set(d, kNegInf<float>)), m, scaled(m)), d,
                  state.m + r);
      const auto any = hn::Gt(l, hn::Zero(d));
      multiply_output(r, hn::IfThenElse(any, hn::Mul(decay, consistent), decay), state.o);
    }
  }

 private:
  static Rows<std::uint16_t> rows_from(Rows<std::uint16_t> x, size_t j) {
    return {x.data + static_cast<std::ptrdiff_t>(j) * x.stride, x.stride};
  }

  // n rows of s, and what lies beyond them up to a tile.
  void score(Rows<std::uint16_t> keys, size_t n, float* s) {
    for (size_t j = 0; j < n; j += 2 * kTileRows) {
      if (n - j > kTileRows)
        score_tiles<2>(rows_from(keys, j), s + j * kLanes);
      else
        score_tiles<1>(rows_from(keys, j), s + j * kLanes);
    }
  }

  template <int kRows>
  HWY_INLINE void score_tiles(Rows<std::uint16_t> keys, float* s) {
    using Sums = TileSums<kRows, kColumns>;
    const size_t row_bytes = static_cast<size_t>(keys.stride) * 2;
    for (size_t r = 0; r < kLanes; r += kColumns * N) {
      Sums::zero();
      for (size_t i = 0; i < a_.d_head; i += kTileElements)
        Sums::add({keys.data + i, row_bytes}, {memory_.qt + i / 2 * kLanes + r, kLanes * 4});
      Sums::store({s + r, kLanes * 4});
    }
  }

  // m follows n rows of s, and b where it has fallen behind. Each query's b is its own affair.
  HWY_INLINE void rebase(const float* HWY_RESTRICT s, size_t n, State<float>& state) {
    const DF d;
    const VF factor = hn::Set(d, factor_);
    VF largest[NV];
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) largest[x] = hn::Set(d, kNegInf<float>);
    for (size_t j = 0; j < n; ++j, s += kLanes) {
      HWY_UNROLL(4)
      for (int x = 0; x < NV; ++x) largest[x] = max_unless_nan(hn::Load(d, s + x * N), largest[x]);
    }
    bool behind = false;
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) {
      hn::Store(max_unless_nan(largest[x], hn::Load(d, state.m + x * N)), d, state.m + x * N);
      const VF wanted = hn::Mul(largest[x], factor);
      hn::Store(wanted, d, w_.tile_max + x * N);
      behind |= !hn::AllFalse(d, is_behind(hn::Load(d, w_.base + x * N), wanted));
    }
    if (HWY_UNLIKELY(behind)) raise_base(state);
  }

  HWY_INLINE hn::Mask<DF> is_behind(VF base, VF wanted) const {
    return hn::Gt(wanted, hn::Add(base, hn::Set(DF(), kMargin / to_log2_)));
  }

  HWY_NOINLINE void raise_base(State<float>& state) {
    add_pending(state);
    const DF d;
    for (size_t r = 0; r < kLanes; r += N) {
      const VF old = hn::Load(d, w_.base + r), wanted = hn::Load(d, w_.tile_max + r);
      const VF base = hn::IfThenElse(is_behind(old, wanted), wanted, old);
      const VF decay = decay_of(hn::Sub(old, finite_base(d, base)));
      hn::Store(base, d, w_.base + r);
      hn::Store(hn::Mul(hn::Load(d, state.l + r), decay), d, state.l + r);
      if (has_output_) multiply_output(r, decay, state.o);
    }
  }

  // The factor for sums when b grows: exp of the negative difference.
  HWY_INLINE VF decay_of(VF difference) const {
    const DF d;
    return exp_nonpositive(d, hn::Mul(difference, hn::Set(d, to_log2_ * kLn2)));
  }

  void multiply_output(size_t r, VF by, float* o) const {
    const DF d;
    for (float *at = o + r, *end = at + a_.d_v * kLanes; at != end; at += kLanes)
      hn::Store(hn::Mul(hn::Load(d, at), by), d, at);
  }

  // The weights of n rows of s, as pairs behind those that wait, then 0 up to kStepKeys.
  template <bool kScaledFirst>
  HWY_INLINE void weights(const float* HWY_RESTRICT s, size_t n, float* HWY_RESTRICT l) {
    const DF d;
    const __m512 factor = _mm512_set1_ps(factor_), to_log2 = _mm512_set1_ps(to_log2_);
    __m512 base[NV], sum[NV];
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) {
      base[x] = finite_base(d, hn::Load(d, w_.base + x * N)).raw;
      sum[x] = _mm512_load_ps(l + x * N);
    }
    float* HWY_RESTRICT p = memory_.p + pending_end_ % kPendingKeys / 2 * kLanes;
    const auto weight = [&](const float* from, int x) HWY_ATTR {
      const __m512 score = _mm512_load_ps(from + x * N);
      if constexpr (kScaledFirst)
        return exp2_of(_mm512_mul_ps(_mm512_sub_ps(score, base[x]), to_log2));
      else
        return exp2_of(_mm512_fmsub_ps(score, factor, base[x]));
    };
    size_t j = 0;
    for (; j + 2 <= n; j += 2, s += 2 * kLanes, p += kLanes) {
      HWY_UNROLL(4)
      for (int x = 0; x < NV; ++x) {
        const __m512 first = weight(s, x), second = weight(s + kLanes, x);
        sum[x] = _mm512_add_ps(sum[x], _mm512_add_ps(first, second));
        _mm512_store_si512(p + x * N, rounded_pair(first, second));
      }
    }
    if (j < n) {
      HWY_UNROLL(4)
      for (int x = 0; x < NV; ++x) {
        const __m512 first = weight(s, x);
        sum[x] = _mm512_add_ps(sum[x], first);
        _mm512_store_si512(p + x * N, rounded_pair(first, _mm512_setzero_ps()));
      }
      p += kLanes;
    }
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) _mm512_store_ps(l + x * N, sum[x]);
    std::fill_n(p, (hwy::RoundUpTo(n, kStepKeys) - hwy::RoundUpTo(n, 2)) / 2 * kLanes, 0.0f);
  }

  // o += the values of the keys whose weights wait.
  void add_pending(State<float>& state) {
    if (pending_begin_ == pending_end_) return;
    const size_t d_v = padded_values(a_.d_v);
    size_t i = 0;
    for (; i + 2 * kTileRows <= d_v; i += 2 * kTileRows) value_tiles<2>(i, state.o);
    if (i < d_v) value_tiles<1>(i, state.o);
    has_output_ = true;
    pending_begin_ = pending_end_;
  }

  template <int kRows>
  HWY_INLINE void value_tiles(size_t i, float* o) {
    using Sums = TileSums<kRows, kColumns>;
    const size_t d_v = padded_values(a_.d_v);
    constexpr size_t kRowBytes = kTileK * 2;
    for (size_t r = 0; r < kLanes; r += kColumns * N) {
      const TileMatrix sums{o + i * kLanes + r, kLanes * 4};
      if (has_output_)
        Sums::load(sums);
      else
        Sums::zero();
      for (size_t j = pending_begin_; j < pending_end_; j += kStepKeys) {
        const float* values = memory_.leaf->values + (tile_of_leaf(j) * d_v + i) * kTileK / 2;
        Sums::add({values + j % kTileK / 2, kRowBytes},
                  {memory_.p + j % kPendingKeys / 2 * kLanes + r, kLanes * 4});
      }
      Sums::store(sums);
    }
  }

  // What add_special_values does, with the weights as they have met the other values.
  void add_specials(const TilePlace& at, const MaskTile<NV, float>& mask, float* o) const {
    const auto* p =
        reinterpret_cast<const std::uint16_t*>(memory_.p + at.j0 % kPendingKeys / 2 * kLanes);
    for (size_t j = 0; j < at.n; ++j)
      for (size_t i = 0; i < a_.d_v; ++i) {
        std::uint16_t x;
        std::memcpy(&x, bf16_at(a_.v, at.j0 + j, i), sizeof(x));
        if (!is_special(x)) continue;
        for (size_t r = 0; r < kLanes; ++r) {
          if (mask.any_hidden && (mask.hidden[r] >> j & 1) != 0) continue;
          std::uint16_t weight;
          std::memcpy(&weight, p + (j / 2 * kLanes + r) * 2 + j % 2, sizeof(weight));
          o[i * kLanes + r] += to_float(weight) * to_float(x);
        }
      }
  }

  static float to_float(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

  const FlashForwardArgs& a_;
  const Workspace<float>& w_;
  const Memory memory_;
  bool scaled_first_ = false;  // scores are scaled, and biased, before they are looked at
  // From what is in w_.s to the unit of b, and from there to log2: two steps where scores may be
  // the most negative number there is.
  float factor_ = 0, to_log2_ = 1;
  // Keys whose weights wait in memory_.p, those of one leaf.
  size_t pending_begin_ = 0, pending_end_ = 0;
  bool has_output_ = false;  // the state's o holds something
};

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#endif  // HWY_AVX3

#endif  // include guard
