// A tile of keys in three steps, and blocks of such tiles.
//   S^T = K Q^T [kTileK, lanes]   P^T = exp(S^T - m)   O^T = V^T P^T [d_v, lanes]
// How the two products are formed is the kernels' own: see FlashTile.
#if defined(HEADWISE_KERNELS_FLASH_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_FLASH_TILE_INL_H_
#undef HEADWISE_KERNELS_FLASH_TILE_INL_H_
#else
#define HEADWISE_KERNELS_FLASH_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"
#include "kernels/exp-inl.h"
#include "kernels/flash_block-inl.h"
#include "kernels/mask_tile-inl.h"
#include "kernels/philox-inl.h"
#include "kernels/score_tile-inl.h"
#include "kernels/value_tile-inl.h"
#include "runtime/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile by `Products`, for blocks of kNV vectors:
//   using T                           type of scores, weights and sums
//   using Memory, take_memory(a, frame)   for the widest block
//   Products(args, memory)
//   pack_queries(t0, n_lanes, rows)   once
//   start_tile(at)                    keys and values are there
//   score<W>(j, n, lane, s, tile_max) n keys of the tile, the W vectors from a lane on
//   add_values(p, runs, n_runs, mask, update, o)
template <class Products>
class FlashTile {
 public:
  using T = typename Products::T;
  using Memory = typename Products::Memory;
  static constexpr int kNV = Products::kNV, NV = kNV;
  static constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  FlashTile(const FlashForwardArgs& args, const Workspace<T>& workspace, const Memory& memory)
      : a_(args), w_(workspace), products_(args, memory) {}

  void pack_queries(size_t t0, size_t n_lanes) { products_.pack_queries(t0, n_lanes, w_.rows); }

  void run(const TilePlace& at, const MaskTile<NV, T>& mask, State<T>& state) {
    products_.start_tile(at);
    const bool first = !state.started;
    if (first) start_state(state, kLanes);
    n_runs_ = runs_of(mask, at.n, runs_);
    score(at, mask);
    const bool grown = softmax(state);
    const Update<T> update{first, grown ? w_.decay : nullptr};
    if (a_.dropout.p > 0) drop_tile<NV>(a_.dropout, at, w_.factors, w_.s);
    products_.add_values(w_.s, runs_, n_runs_, mask, update, state.o);
  }

  void end_leaf(State<T>&) {}

 private:
  void score(const TilePlace& at, const MaskTile<NV, T>& mask) {
    std::fill_n(w_.tile_max, kLanes, kNegInf<T>);
    for_each_run([&](auto width, size_t j, size_t n, size_t lane) {
      products_.template score<decltype(width)::value>(j, n, lane, w_.s + j * kLanes + lane,
                                                       w_.tile_max + lane);
    });
    if (mask.any_hidden || mask.biased) apply_mask_tile(mask, at.n, w_.s, w_.tile_max);
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

  const FlashForwardArgs& a_;
  const Workspace<T>& w_;
  Products products_;
  KeyRun runs_[kMaxRuns];
  size_t n_runs_ = 0;
};

// All blocks of a call; Products<NV> for each width.
template <template <int> class Products>
void run_blocks(const FlashForwardArgs& a) {
  using Widest = Products<kWidestNV>;
  using T = typename Widest::T;
  runtime::ScratchFrame frame;
  const Workspace<T> w = take_workspace<T>(frame);
  const BlockMemory<T> block = take_block_memory<T>(a, frame);
  const typename Widest::Memory memory = Widest::take_memory(a, frame);
  for_each_block<T>(a.t0, a.n_q, [&](auto width, size_t t0, size_t n) {
    using Tile = FlashTile<Products<decltype(width)::value>>;
    Block<Tile>(a, w, block, memory, t0, n).run();
  });
}

// Bytes that run_blocks takes.
template <template <int> class Products>
size_t scratch_of_blocks(const FlashForwardArgs& a) {
  runtime::ScratchSize size;
  take_workspace<typename Products<kWidestNV>::T>(size);
  take_block_memory<typename Products<kWidestNV>::T>(a, size);
  Products<kWidestNV>::take_memory(a, size);
  return size.bytes();
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
