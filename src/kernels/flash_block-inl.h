// Online softmax over tiles of kTileK keys for a block of queries that lie in SIMD lanes: max, exp
// and sum are vertical and every decision is one lane's own.
//   S^T = K Q^T [kTileK, lanes]   P^T = exp(S^T - m)   O^T = V^T P^T [d_v, lanes]
// Order of summation: tiles and keys ascending within a leaf, leaves merged along a binary tree
// (tiles.h). How the two products are formed is the kernels' own: see Block.
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
#include "kernels/value_tile-inl.h"
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

// Working memory for the widest block; narrower ones use the front of it.
template <typename T>
struct Workspace {
  T* s;                // [kTileK][kLanes] scores, then weights
  T* rows;             // [2][kLanes][kTileK] on the way to or from lanes
  T* bias;             // [kTileK][kLanes]
  T* decay;            // [kLanes]
  T* base;             // [kLanes] what is subtracted from the scores
  T* tile_max;         // [kLanes]
  T* factors;          // [kDropoutKeys][kLanes]
  std::uint8_t* seen;  // [kLanes] has the query seen a key?
  State<T>* states;    // the leaves' stack
};

inline size_t n_states(size_t T_k) { return static_cast<size_t>(std::bit_width(T_k / kLeafK)) + 2; }

// Frame: runtime::ScratchFrame, or ScratchSize to learn how much it takes.
template <typename T, class Frame>
Workspace<T> take_workspace(const FlashForwardArgs& a, Frame& frame) {
  constexpr size_t kLanes = kBlockLanes<T, kWidestNV>;
  Workspace<T> w;
  w.s = frame.template take<T>(kTileK * kLanes);
  w.rows = frame.template take<T>(2 * kLanes * kTileK);
  w.bias = frame.template take<T>(kTileK * kLanes);
  w.decay = frame.template take<T>(kLanes);
  w.base = frame.template take<T>(kLanes);
  w.tile_max = frame.template take<T>(kLanes);
  w.factors = frame.template take<T>(kDropoutKeys * kLanes);
  w.seen = frame.template take<std::uint8_t>(kLanes);
  const size_t n = n_states(a.T_k);
  w.states = frame.template take<State<T>>(n);
  for (size_t i = 0; i < n; ++i) {
    T* o = frame.template take<T>(a.d_v * kLanes);
    T* m = frame.template take<T>(kLanes);
    T* l = frame.template take<T>(kLanes);
    if (w.states != nullptr) w.states[i] = {o, m, l, false};
  }
  return w;
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

// What differs between the kernels is `Products`, for blocks of kNV vectors:
//   using T                           type of scores, weights and sums
//   using Memory, take_memory(a, frame)   for the widest block
//   Products(args, memory)
//   pack_queries(t0, n_lanes, rows)   once
//   start_tile(at)                    keys and values are there
//   score<W>(j, n, lane, s, tile_max) n keys of the tile, the W vectors from a lane on
//   add_values(p, runs, n_runs, mask, update, o)
template <class Products>
class Block {
 public:
  using T = typename Products::T;
  static constexpr int NV = Products::kNV;
  static constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  Block(const FlashForwardArgs& args, const Workspace<T>& workspace,
        const typename Products::Memory& memory, size_t t0, size_t n_lanes)
      : a_(args), w_(workspace), products_(args, memory), t0_(t0), n_lanes_(n_lanes) {
    mask_.bias = w_.bias;
    mask_.rows = w_.rows;
  }

  void run() {
    products_.pack_queries(t0_, n_lanes_, w_.rows);
    std::fill_n(w_.seen, kLanes, std::uint8_t{0});
    const size_t diagonal = diagonal_end(a_.terms, t0_ + n_lanes_ - 1);
    size_t depth = 0;  // states on the stack: the counter's set bits
    for (size_t leaf = 0; leaf * kLeafK < a_.T_k; ++leaf) {
      run_leaf(leaf * kLeafK, diagonal, w_.states[depth]);
      for (size_t counter = leaf; counter & 1; counter >>= 1, --depth)
        merge(w_.states[depth - 1], w_.states[depth]);
      ++depth;
    }
    if (depth == 0) w_.states[depth++].started = false;
    for (; depth > 1; --depth) merge(w_.states[depth - 2], w_.states[depth - 1]);
    finish(w_.states[0]);
  }

 private:
  void run_leaf(size_t leaf0, size_t diagonal, State<T>& state) {
    state.started = false;
    const size_t leaf_end = std::min(leaf0 + kLeafK, a_.T_k);
    for (size_t j0 = leaf0; j0 < leaf_end; j0 += kTileK) {
      const TilePlace at{t0_, n_lanes_, j0, std::min(kTileK, leaf_end - j0)};
      if (j0 >= diagonal && j0 + at.n <= a_.terms.n_maskable) continue;
      fill_mask_tile(a_.terms, at, mask_);
      if (!mask_.empty) run_tile(at, state);
    }
  }

  void run_tile(const TilePlace& at, State<T>& state) {
    products_.start_tile(at);
    const bool first = !state.started;
    if (first) start(state);
    n_runs_ = runs_of(mask_, at.n, runs_);
    score(at);
    note_seen(at.n);
    const bool grown = softmax(state);
    const Update<T> update{first, grown ? w_.decay : nullptr};
    if (a_.dropout.p > 0) drop_tile<NV>(a_.dropout, at, w_.factors, w_.s);
    products_.add_values(w_.s, runs_, n_runs_, mask_, update, state.o);
  }

  void score(const TilePlace& at) {
    std::fill_n(w_.tile_max, kLanes, kNegInf<T>);
    for_each_run([&](auto width, size_t j, size_t n, size_t lane) {
      products_.template score<decltype(width)::value>(j, n, lane, w_.s + j * kLanes + lane,
                                                       w_.tile_max + lane);
    });
    if (mask_.any_hidden || mask_.biased) apply_mask_tile(mask_, at.n, w_.s, w_.tile_max);
  }

  // body(std::integral_constant of the vectors that take part, first key, keys, first lane)
  template <class Body>
  HWY_INLINE void for_each_run(Body&& body) {
    for (size_t i = 0; i < n_runs_; ++i) {
      const KeyRun& run = runs_[i];
      with_vectors<NV>(NV - run.skipped, [&](auto width) {
        body(width, run.j, run.n, static_cast<size_t>(run.skipped) * N);
      });
    }
  }

  void start(State<T>& state) {
    state.started = true;
    std::fill_n(state.m, kLanes, kNegInf<T>);
    std::fill_n(state.l, kLanes, T{0});
  }

  void note_seen(size_t n) {
    if (all_seen_) return;
    all_seen_ = true;
    for (size_t r = 0; r < kLanes; ++r) {
      w_.seen[r] |= !mask_.any_hidden || (~mask_.hidden[r] & low_bits(n)) != 0;
      all_seen_ &= w_.seen[r] != 0;
    }
  }

  // Scores to weights; m and l of the state follow. Returns whether some lane's m has grown: then
  // what was summed before has to be multiplied by w_.decay, which is exactly 1 for the others.
  bool softmax(State<T>& state) {
    const D d;
    bool grown = false;
    for (size_t r = 0; r < kLanes; r += N) {
      const V old_m = hn::Load(d, state.m + r);
      const V m = max_unless_nan(hn::Load(d, w_.tile_max + r), old_m);
      grown |= !hn::AllFalse(d, hn::Gt(m, old_m));
      const V base = finite_base(d, m);
      const V decay = exp_nonpositive(d, hn::Sub(old_m, base));
      hn::Store(hn::Mul(hn::Load(d, state.l + r), decay), d, state.l + r);
      hn::Store(m, d, state.m + r);
      hn::Store(base, d, w_.base + r);
      hn::Store(decay, d, w_.decay + r);
    }
    for_each_run([&](auto width, size_t j, size_t n, size_t lane) {
      weights<decltype(width)::value>(w_.s + j * kLanes + lane, n, w_.base + lane, state.l + lane);
    });
    return grown;
  }

  template <int W>
  HWY_INLINE void weights(T* HWY_RESTRICT s, size_t n, const T* HWY_RESTRICT bases,
                          T* HWY_RESTRICT l) {
    const D d;
    V base[W], sum[W];
    HWY_UNROLL(4)
    for (int x = 0; x < W; ++x) {
      base[x] = hn::Load(d, bases + x * N);
      sum[x] = hn::Load(d, l + x * N);
    }
    for (size_t j = 0; j < n; ++j, s += kLanes) {
      HWY_UNROLL(4)
      for (int x = 0; x < W; ++x) {
        const V p = exp_nonpositive(d, hn::Sub(hn::Load(d, s + x * N), base[x]));
        sum[x] = hn::Add(sum[x], p);
        hn::Store(p, d, s + x * N);
      }
    }
    HWY_UNROLL(4)
    for (int x = 0; x < W; ++x) hn::Store(sum[x], d, l + x * N);
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
      start(state);
      std::fill_n(state.o, a_.d_v * kLanes, T{0});
    }
    for (size_t r = 0; r < kLanes; ++r) {
      if (w_.seen[r] && !(state.l[r] > 0))
        state.m[r] = state.l[r] = std::numeric_limits<T>::quiet_NaN();
      if (!w_.seen[r]) state.l[r] = T{1};  // o is 0 already
    }
    for (size_t r = 0; r < kLanes; r += N) {
      const V l = hn::Load(d, state.l + r), inverse = hn::Div(hn::Set(d, T{1}), l);
      for (T *o = state.o + r, *end = o + a_.d_v * kLanes; o < end; o += kLanes)
        hn::Store(divide(d, hn::Load(d, o), l, inverse), d, o);
    }
    for (size_t i = 0; i < a_.d_v; i += kTileK) write_columns(state, i);
    for (size_t r = 0; r < n_lanes_; ++r) {
      if (a_.row_max != nullptr) static_cast<T*>(a_.row_max)[t0_ + r] = state.m[r];
      if (a_.row_sum != nullptr)
        static_cast<T*>(a_.row_sum)[t0_ + r] = w_.seen[r] ? state.l[r] : T{0};
    }
  }

  void write_columns(const State<T>& state, size_t i) {
    const size_t width = std::min(kTileK, a_.d_v - i);
    const auto out = [&](size_t r) {
      return advance(a_.o.data, a_.dtype,
                     static_cast<std::ptrdiff_t>(t0_ + r) * a_.o.stride_t +
                         static_cast<std::ptrdiff_t>(i) * a_.o.stride_i);
    };
    const T* from = state.o + i * kLanes;
    if (a_.dtype == dtype_of_v<T> && a_.o.stride_i == 1) {
      lanes_to_rows(from, kLanes, width, n_lanes_,
                    Strided<T>{static_cast<T*>(out(0)), a_.o.stride_t});
      return;
    }
    lanes_to_rows(from, kLanes, width, n_lanes_, Strided<T>{w_.rows, kTileK});
    for (size_t r = 0; r < n_lanes_; ++r)
      narrow_row(w_.rows + r * kTileK, width, out(r), a_.dtype, a_.o.stride_i);
  }

  const FlashForwardArgs& a_;
  const Workspace<T>& w_;
  Products products_;
  const size_t t0_, n_lanes_;
  MaskTile<NV, T> mask_;
  KeyRun runs_[kMaxRuns];
  size_t n_runs_ = 0;
  bool all_seen_ = false;
};

// All blocks of a call; Products<NV> for each width.
template <template <int> class Products>
void run_blocks(const FlashForwardArgs& a) {
  using Widest = Products<kWidestNV>;
  using T = typename Widest::T;
  runtime::ScratchFrame frame;
  const Workspace<T> w = take_workspace<T>(a, frame);
  const typename Widest::Memory memory = Widest::take_memory(a, frame);
  for_each_block<T>(a.t0, a.n_q, [&](auto width, size_t t0, size_t n) {
    Block<Products<decltype(width)::value>>(a, w, memory, t0, n).run();
  });
}

// Bytes that run_blocks takes.
template <template <int> class Products>
size_t scratch_of_blocks(const FlashForwardArgs& a) {
  runtime::ScratchSize size;
  take_workspace<typename Products<kWidestNV>::T>(a, size);
  Products<kWidestNV>::take_memory(a, size);
  return size.bytes();
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
