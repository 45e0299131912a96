// Online softmax over tiles of kTileK keys for a block of queries that lie in SIMD lanes: max, exp
// and sum are vertical and every decision is one lane's own.
// Order of summation: tiles and keys ascending within a leaf, leaves merged along a binary tree
// (tiles.h). What is done with a tile is the kernels' own: see Block.
#if defined(HEADWISE_KERNELS_FLASH_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_FLASH_BLOCK_INL_H_
#undef HEADWISE_KERNELS_FLASH_BLOCK_INL_H_
#else
#define HEADWISE_KERNELS_FLASH_BLOCK_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/exp-inl.h"
#include "kernels/flash_forward.h"
#include "kernels/mask_tile-inl.h"
#include "kernels/philox-inl.h"
#include "kernels/score_tile-inl.h"
#include "runtime/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The softmax of some keys, unnormalised, for kLanes queries.
template <typename T>
struct State {
  T* o;          // [d_v][kLanes]
  T* m;          // [kLanes] largest score
  T* l;          // [kLanes] sum of exp(score - m)
  bool started;  // false: nothing seen, and the arrays hold nothing
};

// A block's own memory, as long as it lasts.
template <typename T>
struct BlockMemory {
  std::uint8_t* seen;  // [kLanes] has the query seen a key?
  State<T>* states;    // the leaves' stack
};

// Working memory for the widest block; narrower ones use the front of it.
template <typename T>
struct Workspace {
  T* s;         // [kTileK][kLanes] scores, then weights
  T* rows;      // [2][kLanes][kTileK] on the way to or from lanes
  T* bias;      // [kTileK][kLanes]
  T* decay;     // [kLanes]
  T* base;      // [kLanes] what is subtracted from the scores
  T* tile_max;  // [kLanes]
  T* factors;   // [kDropoutKeys][kLanes]
};

inline size_t n_states(size_t T_k) { return static_cast<size_t>(std::bit_width(T_k / kLeafK)) + 2; }

// Frame: runtime::ScratchFrame, or ScratchSize to learn how much it takes.
template <typename T, class Frame>
Workspace<T> take_workspace(Frame& frame) {
  constexpr size_t kLanes = kBlockLanes<T, kWidestNV>;
  Workspace<T> w;
  w.s = frame.template take<T>(kTileK * kLanes);
  w.rows = frame.template take<T>(2 * kLanes * kTileK);
  w.bias = frame.template take<T>(kTileK * kLanes);
  w.decay = frame.template take<T>(kLanes);
  w.base = frame.template take<T>(kLanes);
  w.tile_max = frame.template take<T>(kLanes);
  w.factors = frame.template take<T>(kDropoutKeys * kLanes);
  return w;
}

// `padding`: rows of o beyond d_v.
template <typename T, class Frame>
BlockMemory<T> take_block_memory(const FlashForwardArgs& a, Frame& frame, size_t padding = 0) {
  constexpr size_t kLanes = kBlockLanes<T, kWidestNV>;
  BlockMemory<T> memory;
  memory.seen = frame.template take<std::uint8_t>(kLanes);
  const size_t n = n_states(a.T_k);
  memory.states = frame.template take<State<T>>(n);
  for (size_t i = 0; i < n; ++i) {
    T* o = frame.template take<T>((a.d_v + padding) * kLanes);
    T* m = frame.template take<T>(kLanes);
    T* l = frame.template take<T>(kLanes);
    if (memory.states != nullptr) memory.states[i] = {o, m, l, false};
  }
  return memory;
}

template <typename T>
void start_state(State<T>& state, size_t lanes) {
  state.started = true;
  std::fill_n(state.m, lanes, kNegInf<T>);
  std::fill_n(state.l, lanes, T{0});
}

// o / l. A product with 1 / l and one correction round as a division does, in a third of its time,
// which shows where a row has few keys. Not so where the result is not finite: the correction would
// be NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V divide(D d, V o, V l, V inverse) {
  const V first = hn::Mul(o, inverse);
  const V x = hn::MulAdd(hn::NegMulAdd(first, l, o), inverse, first);
  const auto finite = hn::Lt(hn::Abs(x), hn::Set(d, -kNegInf<hn::TFromD<D>>));
  if (HWY_LIKELY(hn::AllTrue(d, finite))) return x;
  return hn::IfThenElse(finite, x, hn::Div(o, l));
}

// What differs between the kernels is `Tile`, for blocks of kNV vectors:
//   using T                      type of scores, weights and sums
//   using Memory                 for the widest block
//   Tile(args, workspace, memory)
//   pack_queries(t0, n_lanes)    once
//   run(at, mask, state)         adds a tile's keys to the state of their leaf
//   end_leaf(state)              after a leaf's last tile: all of it is in the state
template <class Tile>
class Block {
 public:
  using T = typename Tile::T;
  static constexpr int NV = Tile::kNV;
  static constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  Block(const FlashForwardArgs& args, const Workspace<T>& workspace,
        const BlockMemory<T>& block_memory, const typename Tile::Memory& memory, size_t t0,
        size_t n_lanes)
      : a_(args),
        w_(workspace),
        seen_(block_memory.seen),
        states_(block_memory.states),
        tile_(args, workspace, memory),
        t0_(t0),
        n_lanes_(n_lanes),
        diagonal_(diagonal_end(args.terms, t0 + n_lanes - 1)) {
    mask_.bias = w_.bias;
    mask_.rows = w_.rows;
  }

  void run() {
    start();
    for (size_t leaf = 0; leaf * kLeafK < a_.T_k; ++leaf) run_leaf(leaf);
    finish();
  }

  // The steps of run, for blocks that share what a leaf's keys and values are made into.
  void start() {
    tile_.pack_queries(t0_, n_lanes_);
    std::fill_n(seen_, kLanes, std::uint8_t{0});
  }

  void run_leaf(size_t leaf) {
    State<T>& state = states_[depth_];
    state.started = false;
    const size_t begin = leaf * kLeafK, end = std::min(begin + kLeafK, a_.T_k);
    for (size_t j0 = begin; j0 < end; j0 += kTileK) {
      const TilePlace at{t0_, n_lanes_, j0, std::min(kTileK, end - j0)};
      if (j0 >= diagonal_ && j0 + at.n <= a_.terms.n_maskable) continue;
      fill_mask_tile(a_.terms, at, mask_);
      if (mask_.empty) continue;
      note_seen(at.n);
      tile_.run(at, mask_, state);
    }
    if (state.started) tile_.end_leaf(state);
    for (size_t counter = leaf; counter & 1; counter >>= 1, --depth_)
      merge(states_[depth_ - 1], states_[depth_]);
    ++depth_;
  }

  void finish() {
    if (depth_ == 0) states_[depth_++].started = false;
    for (; depth_ > 1; --depth_) merge(states_[depth_ - 2], states_[depth_ - 1]);
    finish(states_[0]);
  }

 private:
  void note_seen(size_t n) {
    if (all_seen_) return;
    all_seen_ = true;
    for (size_t r = 0; r < kLanes; ++r) {
      seen_[r] |= !mask_.any_hidden || (~mask_.hidden[r] & low_bits(n)) != 0;
      all_seen_ &= seen_[r] != 0;
    }
  }

  // into = into and the later keys of `from`. A state that saw nothing leaves the other's bits.
  void merge(State<T>& into, State<T>& from) {
    if (!from.started) return;
    if (!into.started) {
      std::swap(into, from);
      return;
    }
    const D d;
    for (size_t r = 0; r < kLanes; r += N) {
      const V m1 = hn::Load(d, into.m + r), m2 = hn::Load(d, from.m + r);
      const V m = max_unless_nan(m2, m1), base = finite_base(d, m);
      const V a1 = exp_nonpositive(d, hn::Sub(m1, base));
      const V a2 = exp_nonpositive(d, hn::Sub(m2, base));
      const auto combine = [&](T* x1, const T* x2) {
        const V kept = hn::Mul(hn::Load(d, x1), a1);
        hn::Store(hn::MulAdd(hn::Load(d, x2), a2, kept), d, x1);
      };
      hn::Store(m, d, into.m + r);
      combine(into.l + r, from.l + r);
      for (size_t i = 0; i < a_.d_v * kLanes; i += kLanes) combine(into.o + i + r, from.o + i + r);
    }
  }

  // Divides by the row sums and writes rows. A query that saw no key: o = 0, m = -inf, l = 0. One
  // that saw only scores of -inf has 0 / 0: NaN, in m and l too.
  void finish(State<T>& state) {
    const D d;
    if (!state.started) {
      start_state(state, kLanes);
      std::fill_n(state.o, a_.d_v * kLanes, T{0});
    }
    for (size_t r = 0; r < kLanes; ++r) {
      if (seen_[r] && !(state.l[r] > 0))
        state.m[r] = state.l[r] = std::numeric_limits<T>::quiet_NaN();
      if (!seen_[r]) state.l[r] = T{1};  // o is 0 already
    }
    // As a product with 1 / l where the result is rounded to bf16 anyway.
    const bool coarse = a_.dtype == DType::bf16;
    const bool pairs = coarse && in_pairs(output(0, 0), a_.o.stride_t, a_.o.stride_i, a_.d_v);
    for (size_t r = 0; r < kLanes; r += N) {
      const V l = hn::Load(d, state.l + r), inverse = hn::Div(hn::Set(d, T{1}), l);
      hn::Store(inverse, d, w_.decay + r);
      if (pairs) continue;
      for (T *o = state.o + r, *end = o + a_.d_v * kLanes; o < end; o += kLanes)
        hn::Store(coarse ? hn::Mul(hn::Load(d, o), inverse) : divide(d, hn::Load(d, o), l, inverse),
                  d, o);
    }
    for (size_t i = 0; i < a_.d_v; i += kTileK) {
      if (pairs)
        write_pairs(state, i);
      else
        write_columns(state, i);
    }
    for (size_t r = 0; r < n_lanes_; ++r) {
      if (a_.row_max != nullptr) static_cast<T*>(a_.row_max)[t0_ + r] = state.m[r];
      if (a_.row_sum != nullptr)
        static_cast<T*>(a_.row_sum)[t0_ + r] = seen_[r] ? state.l[r] : T{0};
    }
  }

  void* output(size_t r, size_t i) const {
    return advance(a_.o.data, a_.dtype,
                   static_cast<std::ptrdiff_t>(t0_ + r) * a_.o.stride_t +
                       static_cast<std::ptrdiff_t>(i) * a_.o.stride_i);
  }

  void write_columns(const State<T>& state, size_t i) {
    const size_t width = std::min(kTileK, a_.d_v - i);
    const T* from = state.o + i * kLanes;
    if (a_.dtype == dtype_of_v<T> && a_.o.stride_i == 1) {
      lanes_to_rows(from, kLanes, width, n_lanes_,
                    Strided<T>{static_cast<T*>(output(0, i)), a_.o.stride_t});
      return;
    }
    lanes_to_rows(from, kLanes, width, n_lanes_, Strided<T>{w_.rows, kTileK});
    for (size_t r = 0; r < n_lanes_; ++r)
      narrow_row(w_.rows + r * kTileK, width, output(r, i), a_.dtype, a_.o.stride_i);
  }

  // As write_columns, in half as many floats, and divided on the way.
  void write_pairs(const State<T>& state, size_t i) {
    if constexpr (sizeof(T) == sizeof(float)) {
      const size_t n = std::min(kTileK, a_.d_v - i) / 2;
      pair_rows(state.o + i * kLanes, n, w_.rows);
      lanes_to_rows(w_.rows, kLanes, n, n_lanes_,
                    Strided<T>{static_cast<T*>(output(0, i)), a_.o.stride_t / 2});
    }
  }

  // Row c of `to`: rows 2c and 2c + 1 of `from` times w_.decay, rounded to bf16.
  void pair_rows(const T* HWY_RESTRICT from, size_t n, T* HWY_RESTRICT to) const {
    const D d;
    for (size_t c = 0; c < n; ++c, from += 2 * kLanes, to += kLanes)
      for (size_t r = 0; r < kLanes; r += N) {
        const V factor = hn::Load(d, w_.decay + r);
        const auto first = bf16_bits(d, hn::Mul(hn::Load(d, from + r), factor));
        const auto second = bf16_bits(d, hn::Mul(hn::Load(d, from + kLanes + r), factor));
        hn::Store(hn::BitCast(d, hn::Or(first, hn::ShiftLeft<16>(second))), d, to + r);
      }
  }

  const FlashForwardArgs& a_;
  const Workspace<T>& w_;
  std::uint8_t* const seen_;
  State<T>* const states_;  // of merged leaves; as many as the set bits of their number
  size_t depth_ = 0;
  Tile tile_;
  const size_t t0_, n_lanes_;
  const size_t diagonal_;  // the first key that no query sees because of the diagonal
  MaskTile<NV, T> mask_;
  bool all_seen_ = false;
};

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
