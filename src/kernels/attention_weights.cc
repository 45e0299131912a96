// Attention weights of a block of queries, from the row max m and row sum l that flash_forward
// left:
//   w[t, j] = mean over heads of dropped(exp(s[t, j] - m[t]) / l[t])
// Scores are formed again by the code that formed them for m and l, so they have the same bits and
// no weight exceeds its row. Key tiles outside, heads inside: the mean of a tile lives in scratch
// [kTileK, lanes] and each weight is written once; no head has a matrix of its own. Bound by
// arithmetic at d_head >= 16, else by writing w.
#include "kernels/attention_weights.h"

#include <algorithm>
#include <cstddef>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_weights.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/exp-inl.h"
#include "kernels/mask_tile-inl.h"
#include "kernels/philox-inl.h"
#include "kernels/score_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Working memory for the widest block; narrower ones use the front of it.
template <typename T>
struct WeightsWorkspace {
  T* qt;        // [n_heads][d_head][kLanes]
  T* base;      // [n_heads][kLanes] m, or 0 where it is -inf
  T* inverse;   // [n_heads][kLanes] 1 / l, or 0 for a query that sees no key
  T* s;         // [kTileK][kLanes] of one head
  T* mean;      // [kTileK][kLanes]
  T* k_rows;    // [kTileK][d_head] widened
  T* rows;      // [2][kLanes][kTileK] on the way to or from lanes
  T* bias;      // [kTileK][kLanes]
  T* tile_max;  // [kLanes]
  T* factors;   // [kDropoutKeys][kLanes]
};

template <typename T>
WeightsWorkspace<T> take_workspace(const AttentionWeightsArgs& a, runtime::ScratchFrame& frame) {
  constexpr size_t kLanes = kBlockLanes<T, kWidestNV>;
  WeightsWorkspace<T> w;
  w.qt = frame.take<T>(a.n_heads * a.d_head * kLanes);
  w.base = frame.take<T>(a.n_heads * kLanes);
  w.inverse = frame.take<T>(a.n_heads * kLanes);
  w.s = frame.take<T>(kTileK * kLanes);
  w.mean = frame.take<T>(kTileK * kLanes);
  w.k_rows = frame.take<T>(kTileK * a.d_head);
  w.rows = frame.take<T>(2 * kLanes * kTileK);
  w.bias = frame.take<T>(kTileK * kLanes);
  w.tile_max = frame.take<T>(kLanes);
  w.factors = frame.take<T>(kDropoutKeys * kLanes);
  return w;
}

template <int NV, typename T>
class WeightsBlock {
 public:
  static constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  WeightsBlock(const AttentionWeightsArgs& args, const WeightsWorkspace<T>& workspace, size_t t0,
               size_t n_lanes)
      : a_(args), w_(workspace), t0_(t0), n_lanes_(n_lanes) {
    mask_.bias = w_.bias;
    mask_.rows = w_.rows;
  }

  void run() {
    for (size_t h = 0; h < a_.n_heads; ++h) prepare(h);
    for (size_t j0 = 0; j0 < a_.T_k; j0 += kTileK) {
      const TilePlace at{t0_, n_lanes_, j0, std::min(kTileK, a_.T_k - j0)};
      if (a_.n_heads == 1) {
        head_tile(0, at, w_.mean);
      } else {
        mean_tile(at);
      }
      write(at);
    }
  }

 private:
  void prepare(size_t h) {
    const WeightsHead& head = a_.heads[h];
    pack_queries<NV>(head.q, a_.dtype, head.terms.scale, t0_, n_lanes_, a_.d_head, w_.rows,
                     w_.qt + h * a_.d_head * kLanes);
    for (size_t r = 0; r < kLanes; ++r) {
      const bool real = r < n_lanes_;
      const T m = real ? static_cast<const T*>(head.row_max)[t0_ + r] : T{0};
      const T l = real ? static_cast<const T*>(head.row_sum)[t0_ + r] : T{0};
      w_.base[h * kLanes + r] = m == kNegInf<T> ? T{0} : m;
      w_.inverse[h * kLanes + r] = l == 0 ? T{0} : T{1} / l;
    }
  }

  void mean_tile(const TilePlace& at) {
    const D d;
    std::fill_n(w_.mean, at.n * kLanes, T{0});
    for (size_t h = 0; h < a_.n_heads; ++h) {
      head_tile(h, at, w_.s);
      for (size_t x = 0; x < at.n * kLanes; x += N)
        hn::Store(hn::Add(hn::Load(d, w_.mean + x), hn::Load(d, w_.s + x)), d, w_.mean + x);
    }
    const V n_heads = hn::Set(d, static_cast<T>(a_.n_heads));
    for (size_t x = 0; x < at.n * kLanes; x += N)
      hn::Store(hn::Div(hn::Load(d, w_.mean + x), n_heads), d, w_.mean + x);
  }

  // The weights of one head. An empty tile takes the same way with scores of -inf: a row that is
  // NaN is NaN in all of its keys, however it is cut.
  void head_tile(size_t h, const TilePlace& at, T* p) {
    const WeightsHead& head = a_.heads[h];
    fill_mask_tile(head.terms, at, mask_);
    if (mask_.empty) {
      std::fill_n(p, at.n * kLanes, kNegInf<T>);
    } else {
      const Rows<T> k = rows_of(head.k, a_.dtype, at.j0, at.n, a_.d_head, w_.k_rows);
      score_tile<NV>(w_.qt + h * a_.d_head * kLanes, k, at.n, a_.d_head, kLanes, p, w_.tile_max);
      if (mask_.any_hidden || mask_.biased) apply_mask_tile(mask_, at.n, p, w_.tile_max);
    }
    const D d;
    for (size_t r = 0; r < kLanes; r += N) {
      const V base = hn::Load(d, w_.base + h * kLanes + r);
      const V inverse = hn::Load(d, w_.inverse + h * kLanes + r);
      for (T *x = p + r, *end = x + at.n * kLanes; x != end; x += kLanes)
        hn::Store(hn::Mul(exp_nonpositive(d, hn::Sub(hn::Load(d, x), base)), inverse), d, x);
    }
    if (head.dropout.p > 0) drop_tile<NV>(head.dropout, at, w_.factors, p);
  }

  void write(const TilePlace& at) {
    const auto out = [&](size_t r) {
      return advance(a_.w.data, a_.dtype,
                     static_cast<std::ptrdiff_t>(t0_ + r) * a_.w.stride_t +
                         static_cast<std::ptrdiff_t>(at.j0) * a_.w.stride_i);
    };
    if (a_.dtype == dtype_of_v<T> && a_.w.stride_i == 1) {
      lanes_to_rows(w_.mean, kLanes, at.n, n_lanes_,
                    Strided<T>{static_cast<T*>(out(0)), a_.w.stride_t});
      return;
    }
    lanes_to_rows(w_.mean, kLanes, at.n, n_lanes_, Strided<T>{w_.rows, kTileK});
    for (size_t r = 0; r < n_lanes_; ++r)
      narrow_row(w_.rows + r * kTileK, at.n, out(r), a_.dtype, a_.w.stride_i);
  }

  const AttentionWeightsArgs& a_;
  const WeightsWorkspace<T>& w_;
  const size_t t0_, n_lanes_;
  MaskTile<NV, T> mask_;
};

template <typename T>
void weights(const AttentionWeightsArgs& a) {
  runtime::ScratchFrame frame;
  const WeightsWorkspace<T> w = take_workspace<T>(a, frame);
  for_each_block<T>(a.t0, a.n_q, [&](auto width, size_t t0, size_t n) {
    WeightsBlock<decltype(width)::value, T>(a, w, t0, n).run();
  });
}

void attention_weights_on_target(const AttentionWeightsArgs& a) {
  if (a.dtype == DType::f64)
    weights<double>(a);
  else
    weights<float>(a);
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(attention_weights_on_target);

void attention_weights(const AttentionWeightsArgs& args) {
  if (args.n_q != 0 && args.n_heads != 0) HWY_DYNAMIC_DISPATCH(attention_weights_on_target)(args);
}

}  // namespace headwise::kernels
#endif
