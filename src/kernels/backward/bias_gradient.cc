// Gradient of an additive bias for one tile of it, or for all queries or keys that share an entry:
//   d_bias[t, j] = sum of dS[t, j] over the heads, and queries and keys, that it was broadcast to
// The sum of a tile lies in scratch [kTileK, lanes], whatever T_q and T_k are; heads are added in
// the order in which they are given. Bound by arithmetic: two products of a tile.
#include "kernels/backward/bias_gradient.h"

#include <algorithm>
#include <cstddef>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward/bias_gradient.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/backward/gradient_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
class BiasGradient {
 public:
  BiasGradient(const BiasGradientArgs& args, runtime::ScratchFrame& frame)
      : a_(args), tile_({args.dtype, args.d_head, args.d_v, kTileK}, frame) {
    sum_ = frame.take<T>(kTileK * kLanes);
    rows_ = frame.take<T>(kLanes * kTileK);
  }

  void run() {
    std::fill_n(sum_, kTileK * kLanes, T{0});
    for (size_t t0 = a_.t0; t0 < a_.t0 + a_.n_q; t0 += kLanes)
      for (size_t j0 = a_.j0; j0 < a_.j0 + a_.n_k; j0 += kTileK)
        for (size_t h = 0; h < a_.n_heads; ++h) add(a_.heads[h], t0, j0);
    write();
  }

 private:
  static constexpr size_t kLanes = kBackwardTile, N = kVectorLanes<T>;

  void add(const BackwardHead& head, size_t t0, size_t j0) {
    const hn::ScalableTag<T> d;
    const size_t n_lanes = std::min(kLanes, a_.t0 + a_.n_q - t0);
    if (j0 >= diagonal_end(head.terms, t0 + n_lanes - 1)) return;
    tile_.load_keys(head, j0, std::min(kTileK, a_.j0 + a_.n_k - j0));
    tile_.load_queries(head, t0, n_lanes);
    if (!tile_.run(j0)) return;
    for (size_t i = 0; i < tile_.n_runs; ++i) {
      const KeyRun& run = tile_.runs[i];
      for (size_t j = run.j; j < run.j + run.n; ++j) {
        T* ds = tile_.ds + j * kLanes;
        std::fill(ds + n_lanes, ds + kLanes, T{0});  // lanes without a query
        for (size_t r = 0; r < kLanes; r += N) {
          T* to = sum_ + j * kLanes + r;
          hn::Store(hn::Add(hn::Load(d, to), hn::Load(d, ds + r)), d, to);
        }
      }
    }
  }

  void write() {
    size_t n_rows = a_.n_q, n_columns = a_.n_k;
    lanes_to_rows(sum_, kLanes, kTileK, kLanes, Strided<T>{rows_, kTileK});
    if (a_.one_row) {
      for (size_t r = 1; r < kLanes; ++r)
        for (size_t j = 0; j < kTileK; ++j) rows_[j] += rows_[r * kTileK + j];
      n_rows = 1;
    }
    if (a_.one_column) {
      for (size_t r = 0; r < n_rows; ++r)
        for (size_t j = 1; j < kTileK; ++j) rows_[r * kTileK] += rows_[r * kTileK + j];
      n_columns = 1;
    }
    const size_t t0 = a_.one_row ? 0 : a_.t0, j0 = a_.one_column ? 0 : a_.j0;
    for (size_t r = 0; r < n_rows; ++r)
      narrow_row(rows_ + r * kTileK, n_columns,
                 advance(a_.d_bias.data, a_.bias_dtype,
                         static_cast<std::ptrdiff_t>(t0 + r) * a_.d_bias.stride_t +
                             static_cast<std::ptrdiff_t>(j0) * a_.d_bias.stride_i),
                 a_.bias_dtype, a_.d_bias.stride_i);
  }

  const BiasGradientArgs& a_;
  GradientTile<T> tile_;
  T* sum_;   // [kTileK][kLanes]
  T* rows_;  // [kLanes][kTileK]
};

void bias_gradient_on_target(const BiasGradientArgs& a) {
  runtime::ScratchFrame frame;
  if (a.dtype == DType::f64)
    BiasGradient<double>(a, frame).run();
  else
    BiasGradient<float>(a, frame).run();
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(bias_gradient_on_target);

void bias_gradient(const BiasGradientArgs& args) {
  HWY_DYNAMIC_DISPATCH(bias_gradient_on_target)(args);
}

}  // namespace headwise::kernels
#endif
