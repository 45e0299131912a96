// Softmax over at most one tile of keys, for many queries: with so little to do for each query, to
// bring Q into lanes and O back would cost as much as the products. Here Q and O stay rows, and the
// keys are brought into lanes once per call:
//   S = Q K^T [queries, T_k]   P^T = exp(S^T - m) [T_k, lanes]   O = P V [queries, d_v]
// Only the scores change sides, T_k numbers a query. Every sum has the order of the flash block:
// the bits are the same, so that each may take what it is faster at. Bound by multiply-adds from 16
// keys on, by reading Q and writing O below.
#if defined(HEADWISE_KERNELS_FEW_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_FEW_KEYS_INL_H_
#undef HEADWISE_KERNELS_FEW_KEYS_INL_H_
#else
#define HEADWISE_KERNELS_FEW_KEYS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "hwy/highway.h"
#include "kernels/flash_block-inl.h"
#include "kernels/one_key-inl.h"
#include "kernels/value_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries whose scores are made together, kTileK features at a time.
template <typename T>
inline constexpr size_t kQueryRows = kBlockLanes<T, kWidestNV> < 16 ? 8 : 16;
// Rows of a register block of scores: they divide kQueryRows.
template <int NK, typename T>
inline constexpr int kScoreRows =
    std::min(static_cast<int>(std::bit_floor(static_cast<unsigned>(kBlockRows<NK>))),
             static_cast<int>(kQueryRows<T>));

// One key costs a copy where nobody asks for its score. More pay up to 16 (a vector of AVX-512) and
// from 128 features of Q and O together on; measured on one core with AVX-512 (Intel Xeon, f32, 192
// queries, time of the flash block over this): 16 keys of d 8 0.6, d 32 1.0, d 64 1.15, d 128 1.2,
// d 256 1.3; 7 keys of d 64 1.05, d 256 1.2; 24 keys of d 64 1.0; 33 keys of d 32 0.8, d 256 1.0.
inline constexpr size_t kFewestFeatures = 128;
template <typename T>
bool suits_few_keys(const FlashForwardArgs& a) {
  const auto in_place = [](std::ptrdiff_t stride, size_t width) {
    return stride == 1 || width <= 1;
  };
  const bool one = a.T_k == 1 && OneKey<T>::suits(a);
  const bool few = a.T_k > 1 && a.T_k <= kFewKeys && a.d_head + a.d_v >= kFewestFeatures;
  return (one || few) && a.T_q >= kVectorLanes<T> && a.dtype == dtype_of_v<T> &&
         in_place(a.q.stride_i, a.d_head) && in_place(a.k.stride_i, a.d_head) &&
         in_place(a.v.stride_i, a.d_v) && in_place(a.o.stride_i, a.d_v);
}

template <typename T>
struct FewKeysMemory {
  T* kt;      // [d_head][keys, to a whole vector]
  T* q;       // [kQueryRows][kTileK] scaled
  T* scores;  // [kLanes, to a multiple of kQueryRows][kTileK]
  T* m;       // [kLanes] largest score
  T* l;       // [kLanes] sum of exp(score - m)
  Workspace<T> work;
};

template <typename T, class Frame>
FewKeysMemory<T> take_few_keys_memory(const FlashForwardArgs& a, Frame& frame) {
  FewKeysMemory<T> memory;
  memory.kt = frame.template take<T>(a.d_head * kFewKeys);
  memory.q = frame.template take<T>(kQueryRows<T> * kTileK);
  memory.scores =
      frame.template take<T>(hwy::RoundUpTo(kBlockLanes<T, kWidestNV>, kQueryRows<T>) * kTileK);
  memory.m = frame.template take<T>(kBlockLanes<T, kWidestNV>);
  memory.l = frame.template take<T>(kBlockLanes<T, kWidestNV>);
  memory.work = take_workspace<T>(frame);
  return memory;
}

// rows[r][key] of MR queries and NK vectors of keys: `width` more features, after what is there.
template <int MR, int NK, typename T>
HWY_INLINE void add_scores(const T* HWY_RESTRICT q, const T* HWY_RESTRICT kt, size_t key_lanes,
                           size_t width, bool first, T* HWY_RESTRICT rows) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>;
  hn::Vec<hn::ScalableTag<T>> acc[MR][NK];
  HWY_UNROLL(16)
  for (int r = 0; r < MR; ++r) {
    HWY_UNROLL(4)
    for (int x = 0; x < NK; ++x)
      acc[r][x] = first ? hn::Zero(d) : hn::Load(d, rows + r * kTileK + x * N);
  }
  for (size_t i = 0; i < width; ++i, kt += key_lanes) {
    hn::Vec<hn::ScalableTag<T>> key[NK];
    HWY_UNROLL(4)
    for (int x = 0; x < NK; ++x) key[x] = hn::Load(d, kt + x * N);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      const auto query = hn::Set(d, q[r * kTileK + i]);
      HWY_UNROLL(4)
      for (int x = 0; x < NK; ++x) acc[r][x] = hn::MulAdd(key[x], query, acc[r][x]);
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < MR; ++r) {
    HWY_UNROLL(4)
    for (int x = 0; x < NK; ++x) hn::Store(acc[r][x], d, rows + r * kTileK + x * N);
  }
}

// Outputs of MR queries, NF vectors of features; the last vector has `last` of them. p is
// [n][kLanes], l and inverse [MR].
template <int MR, int NF, size_t kLanes, bool kPartial, typename T>
HWY_INLINE void value_block(const T* HWY_RESTRICT p, Rows<T> v, size_t n, size_t last,
                            const T* HWY_RESTRICT l, const T* HWY_RESTRICT inverse, Strided<T> o) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>;
  hn::Vec<hn::ScalableTag<T>> acc[MR][NF];
  set_zero<T>(acc);
  const T* row = v.data;
  for (size_t j = 0; j < n; ++j, row += v.stride, p += kLanes) {
    hn::Vec<hn::ScalableTag<T>> value[NF];
    HWY_UNROLL(4)
    for (int x = 0; x < NF; ++x)
      value[x] =
          kPartial && x == NF - 1 ? load_first(d, row + x * N, last) : hn::LoadU(d, row + x * N);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      const auto weight = hn::Set(d, p[r]);
      HWY_UNROLL(4)
      for (int x = 0; x < NF; ++x) acc[r][x] = hn::MulAdd(value[x], weight, acc[r][x]);
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < MR; ++r) {
    const auto sum = hn::Set(d, l[r]), factor = hn::Set(d, inverse[r]);
    HWY_UNROLL(4)
    for (int x = 0; x < NF; ++x) {
      const auto y = divide(d, acc[r][x], sum, factor);
      T* to = o.row(static_cast<size_t>(r)) + x * N;
      if (kPartial && x == NF - 1)
        store_first(y, d, to, last);
      else
        hn::StoreU(y, d, to);
    }
  }
}

// The queries [t0, t0 + n) of a call against all its keys.
template <int NV, typename T>
class FewKeysBlock {
 public:
  static constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  FewKeysBlock(const FlashForwardArgs& args, const FewKeysMemory<T>& memory, size_t t0, size_t n)
      : a_(args), memory_(memory), w_(memory.work), m_(memory.m), l_(memory.l), t0_(t0), n_(n) {
    mask_.bias = w_.bias;
    mask_.rows = w_.rows;
  }

  const MaskTile<NV, T>& read_masks() {
    fill_mask_tile(a_.terms, place(), mask_);
    return mask_;
  }

  void run() {
    score();
    softmax();
    if (a_.dropout.p > 0) drop_tile<NV>(a_.dropout, place(), w_.factors, w_.s);
    close_rows();
    size_t r = 0;
    for (constexpr int kMost = kBlockRows<kWidestNV>; r + kMost <= n_; r += kMost)
      write_rows<kMost>(r);
    for (; r + 4 <= n_; r += 4) write_rows<4>(r);
    for (; r < n_; ++r) write_rows<1>(r);
  }

 private:
  TilePlace place() const { return {t0_, n_, 0, a_.T_k}; }

  void score() {
    for (size_t r = 0; r < n_; r += kQueryRows<T>)
      for (size_t i = 0; i == 0 || i < a_.d_head; i += kTileK) {
        const size_t width = std::min(kTileK, a_.d_head - i);
        scale_queries(r, i, width);
        score_features(i, width, memory_.scores + r * kTileK);
      }
    rows_to_lanes(Strided<const T>{memory_.scores, kTileK}, n_, a_.T_k, w_.s, kLanes,
                  [](auto x) { return x; });
  }

  // Features [i, i + width) of the queries from r on; past the last query, of that.
  void scale_queries(size_t r, size_t i, size_t width) {
    const D d;
    const Scale<T> scaled(a_.terms.scale);
    for (size_t row = 0; row < kQueryRows<T>; ++row) {
      const size_t t = t0_ + std::min(r + row, n_ - 1);
      const T* from = static_cast<const T*>(a_.q.data) +
                      static_cast<std::ptrdiff_t>(t) * a_.q.stride_t +
                      static_cast<std::ptrdiff_t>(i);
      T* to = memory_.q + row * kTileK;
      size_t c = 0;
      for (; c + N <= width; c += N) hn::Store(scaled(hn::LoadU(d, from + c)), d, to + c);
      if (c < width) hn::Store(scaled(load_first(d, from + c, width - c)), d, to + c);
    }
  }

  void score_features(size_t i, size_t width, T* rows) {
    const size_t key_lanes = hwy::RoundUpTo(a_.T_k, N);
    for (size_t j = 0; j < key_lanes;) {
      const size_t n = std::min<size_t>((key_lanes - j) / N, kWidestNV);
      with_vectors<kWidestNV>(static_cast<int>(n), [&](auto vectors) {
        constexpr int NK = decltype(vectors)::value, MR = kScoreRows<NK, T>;
        for (size_t r = 0; r < kQueryRows<T>; r += MR)
          add_scores<MR, NK>(memory_.q + r * kTileK, memory_.kt + i * key_lanes + j, key_lanes,
                             width, i == 0, rows + r * kTileK + j);
      });
      j += n * N;
    }
  }

  // Scores to weights, their sums to l.
  void softmax() {
    const D d;
    if (mask_.any_hidden || mask_.biased)
      apply_mask_tile(mask_, a_.T_k, w_.s, w_.tile_max);
    else
      largest_scores();
    V base[NV], sum[NV];
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) {
      const V m = hn::Load(d, w_.tile_max + x * N);
      hn::Store(m, d, m_ + x * N);
      base[x] = finite_base(d, m);
      sum[x] = hn::Zero(d);
    }
    for (T *s = w_.s, *end = s + a_.T_k * kLanes; s != end; s += kLanes) {
      HWY_UNROLL(4)
      for (int x = 0; x < NV; ++x) {
        const V p = exp_nonpositive(d, hn::Sub(hn::Load(d, s + x * N), base[x]));
        sum[x] = hn::Add(sum[x], p);
        hn::Store(p, d, s + x * N);
      }
    }
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) hn::Store(sum[x], d, l_ + x * N);
  }

  void largest_scores() {
    const D d;
    V largest[NV];
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) largest[x] = hn::Set(d, kNegInf<T>);
    for (const T *s = w_.s, *end = s + a_.T_k * kLanes; s != end; s += kLanes) {
      HWY_UNROLL(4)
      for (int x = 0; x < NV; ++x) largest[x] = max_unless_nan(hn::Load(d, s + x * N), largest[x]);
    }
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) hn::Store(largest[x], d, w_.tile_max + x * N);
  }

  // As the flash block ends: a query that saw no key has o = 0, m = -inf, l = 0; one that saw only
  // scores of -inf has NaN.
  void close_rows() {
    for (size_t r = 0; r < n_; ++r) {
      const bool seen = !mask_.any_hidden || (~mask_.hidden[r] & low_bits(a_.T_k)) != 0;
      if (seen && !(l_[r] > 0)) m_[r] = l_[r] = std::numeric_limits<T>::quiet_NaN();
      if (a_.row_max != nullptr) static_cast<T*>(a_.row_max)[t0_ + r] = m_[r];
      if (a_.row_sum != nullptr) static_cast<T*>(a_.row_sum)[t0_ + r] = l_[r];
      if (!seen) l_[r] = T{1};  // o is 0 already
    }
    const D d;
    for (size_t r = 0; r < kLanes; r += N)
      hn::Store(hn::Div(hn::Set(d, T{1}), hn::Load(d, l_ + r)), d, w_.decay + r);
  }

  template <int MR>
  HWY_NOINLINE void write_rows(size_t r) {
    const Rows<T> v{static_cast<const T*>(a_.v.data), a_.v.stride_t};
    T* o = static_cast<T*>(a_.o.data) + static_cast<std::ptrdiff_t>(t0_ + r) * a_.o.stride_t;
    for (size_t i = 0; i < a_.d_v;) {
      const size_t left = a_.d_v - i;
      const size_t n = std::min<size_t>((left + N - 1) / N, kWidestNV);
      const size_t last = std::min(left - (n - 1) * N, N);
      with_vectors<kWidestNV>(static_cast<int>(n), [&](auto vectors) {
        constexpr int NF = decltype(vectors)::value;
        const auto write = [&](auto partial) {
          value_block<MR, NF, kLanes, decltype(partial)::value>(w_.s + r, {v.data + i, v.stride},
                                                                a_.T_k, last, l_ + r, w_.decay + r,
                                                                Strided<T>{o + i, a_.o.stride_t});
        };
        if (last == N)
          write(std::false_type());
        else
          write(std::true_type());
      });
      i += n * N;
    }
  }

  const FlashForwardArgs& a_;
  const FewKeysMemory<T>& memory_;
  const Workspace<T>& w_;
  T *const m_, *const l_;
  const size_t t0_, n_;
  MaskTile<NV, T> mask_;
};

// A hidden value that is NaN or infinite has to stay out of sums: left to the flash block.
template <typename T>
bool has_plain_values(const FlashForwardArgs& a) {
  return all_finite(Rows<T>{static_cast<const T*>(a.v.data), a.v.stride_t}, a.T_k, a.d_v);
}

// All queries of a call that suits and has plain values.
template <typename T>
void run_few_keys(const FlashForwardArgs& a, const FewKeysMemory<T>& memory) {
  const OneKey<T> one_key(a);
  rows_to_lanes(Strided<const T>{static_cast<const T*>(a.k.data), a.k.stride_t}, a.T_k, a.d_head,
                memory.kt, hwy::RoundUpTo(a.T_k, kVectorLanes<T>), [](auto x) { return x; });
  for_each_block<T>(a.t0, a.n_q, [&](auto width, size_t t0, size_t n) {
    FewKeysBlock<decltype(width)::value, T> block(a, memory, t0, n);
    if (!one_key.run(t0, n, block.read_masks())) block.run();
  });
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
