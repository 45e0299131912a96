// A tile of 64 queries in lanes x 64 keys: weights P^T, after dropout, and the gradients dS^T of
// its scores:
//   S^T = K Q^T   dP^T = V dO^T   P = exp(S - m) / l   dS = P (f dP - delta), f: dropout's factor
// m and l come apart from forward: exp(S - (m + log l)) would lose a row whose scores are huge.
// What is hidden is absent: its P and dS are 0 whatever was computed there.
#if defined(HEADWISE_KERNELS_BACKWARD_GRADIENT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_BACKWARD_GRADIENT_TILE_INL_H_
#undef HEADWISE_KERNELS_BACKWARD_GRADIENT_TILE_INL_H_
#else
#define HEADWISE_KERNELS_BACKWARD_GRADIENT_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/backward/products-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/mask_tile-inl.h"
#include "kernels/philox-inl.h"
#include "kernels/score_tile-inl.h"
#include "kernels/value_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kBackwardTile == kTileK, "a row of a tile is one word of mask bits");

// Rows begin at a vector, and vectors may be stored past their end.
template <typename T>
size_t padded(size_t width) {
  return (width + kVectorLanes<T> - 1) / kVectorLanes<T> * kVectorLanes<T>;
}

// Rows [r0, r0 + n) of x as rows of T, filled up with zeros. Returns whether all are finite.
template <typename T>
bool copy_rows(const ConstMatrix& x, DType dtype, size_t r0, size_t n, size_t width, T* to) {
  const size_t stride = padded<T>(width);
  for (size_t r = 0; r < n; ++r) {
    T* row = to + r * stride;
    widen_row(advance(x.data, dtype, static_cast<std::ptrdiff_t>(r0 + r) * x.stride_t), dtype,
              x.stride_i, width, row);
    std::fill(row + width, row + stride, T{0});
  }
  return all_finite(Rows<T>{to, static_cast<std::ptrdiff_t>(stride)}, n, width);
}

struct GradientSizes {
  DType dtype;
  size_t d_head, d_v;
  size_t n_keys;  // that are held at a time
};

template <typename T>
class GradientTile {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using U = hwy::MakeUnsigned<T>;
  static constexpr size_t N = kVectorLanes<T>, kLanes = kBackwardTile;
  static constexpr int NV = static_cast<int>(kLanes / N);
  static constexpr size_t kBits = sizeof(T) * 8, kWords = kTileK / kBits;

  template <class Frame>
  GradientTile(const GradientSizes& sizes, Frame& frame) : sizes_(sizes) {
    const size_t width = padded<T>(sizes.d_head), width_v = padded<T>(sizes.d_v);
    k_rows = frame.template take<T>(sizes.n_keys * width);
    v_rows = frame.template take<T>(sizes.n_keys * width_v);
    q_rows = frame.template take<T>(kLanes * width);
    d_o_rows = frame.template take<T>(kLanes * width_v);
    p = frame.template take<T>(kTileK * kLanes);
    ds = frame.template take<T>(kTileK * kLanes);
    qt_ = frame.template take<T>(sizes.d_head * kLanes);
    d_ot_ = frame.template take<T>(sizes.d_v * kLanes);
    row_max_ = frame.template take<T>(kLanes);
    inverse_ = frame.template take<T>(kLanes);
    delta_ = frame.template take<T>(kLanes);
    factors_ = frame.template take<T>(kDropoutKeys * kLanes);
    tile_max_ = frame.template take<T>(kLanes);
    words_ = frame.template take<U>(kWords * kLanes);
    mask.bias = frame.template take<T>(kTileK * kLanes);
    mask.rows = frame.template take<T>(2 * kLanes * kTileK);
  }

  // Keys [j0, j0 + n), n <= n_keys.
  void load_keys(const BackwardHead& head, size_t j0, size_t n) {
    j0_ = j0;
    n_keys_ = n;
    keys_finite_ = copy_rows(head.k, sizes_.dtype, j0, n, sizes_.d_head, k_rows);
    copy_rows(head.v, sizes_.dtype, j0, n, sizes_.d_v, v_rows);
  }

  // Queries [t0, t0 + n), n <= kLanes.
  void load_queries(const BackwardHead& head, size_t t0, size_t n) {
    head_ = &head;
    t0_ = t0;
    n_lanes = n;
    n_vectors = (n + N - 1) / N;
    const bool finite = copy_rows(head.q, sizes_.dtype, t0, n, sizes_.d_head, q_rows);
    queries_finite_ = copy_rows(head.d_o, sizes_.dtype, t0, n, sizes_.d_v, d_o_rows) && finite;
    const auto stride = [](size_t width) { return static_cast<std::ptrdiff_t>(padded<T>(width)); };
    rows_to_lanes(Strided<const T>{q_rows, stride(sizes_.d_head)}, n, sizes_.d_head, qt_, kLanes,
                  Scale<T>(head.terms.scale));
    rows_to_lanes(Strided<const T>{d_o_rows, stride(sizes_.d_v)}, n, sizes_.d_v, d_ot_, kLanes,
                  [](auto x) { return x; });
    const auto copy = [&](const void* from, T* to) {
      const T* rows = static_cast<const T*>(from) + t0;
      std::copy_n(rows, n, to);
      std::fill(to + n, to + kLanes, rows[n - 1]);
    };
    copy(head.row_max, row_max_);
    copy(head.inverse, inverse_);
    copy(head.delta, delta_);
  }

  // P and dS of the loaded queries and the keys from j on, a multiple of kTileK after the first
  // loaded one. False: no query sees any of them, and nothing was written.
  bool run(size_t j) {
    const TilePlace at{t0_, n_lanes, j, std::min(kTileK, j0_ + n_keys_ - j)};
    const ScoreTerms& terms = head_->terms;
    if (j >= diagonal_end(terms, t0_ + n_lanes - 1) && j + at.n <= terms.n_maskable) return false;
    fill_mask_tile(terms, at, mask);
    if (mask.empty) return false;
    n_runs = runs_of(mask, at.n, runs);
    form(qt_, key_rows(j), sizes_.d_head, p);
    form(d_ot_, value_rows(j), sizes_.d_v, ds);
    for (int n = 0; n < 2; ++n)
      if (head_->d_weights[n].data != nullptr)
        add_weights_gradient(at, head_->d_weights[n], head_->d_weights_factor[n]);
    if (mask.any_hidden) split_hidden();
    const bool masked = mask.any_hidden || mask.biased;
    if (head_->dropout.p > 0)
      masked ? gradients<true, true>(at) : gradients<false, true>(at);
    else
      masked ? gradients<true, false>(at) : gradients<false, false>(at);
    return true;
  }

  const T* key_rows(size_t j) const { return k_rows + (j - j0_) * padded<T>(sizes_.d_head); }
  const T* value_rows(size_t j) const { return v_rows + (j - j0_) * padded<T>(sizes_.d_v); }

  // A NaN or inf would spread through products with the zeros of what is hidden.
  bool products_are_safe() const { return !mask.any_hidden || (keys_finite_ && queries_finite_); }

  T *k_rows, *v_rows;     // [n_keys][padded width]
  T *q_rows, *d_o_rows;   // [kLanes][padded width]
  T *p, *ds;              // [kTileK][kLanes]
  size_t n_lanes = 0;     // queries
  size_t n_vectors = 0;   // of lanes that hold queries
  KeyRun runs[kMaxRuns];  // outside them p and ds hold nothing
  size_t n_runs = 0;
  MaskTile<NV, T> mask;

 private:
  // to = x y^T in the runs: x [keys, width] by the row, yt in lanes.
  void form(const T* yt, const T* x, size_t width, T* to) {
    const size_t stride = padded<T>(width);
    std::fill_n(tile_max_, kLanes, kNegInf<T>);
    for (size_t i = 0; i < n_runs; ++i) {
      const KeyRun& run = runs[i];
      for_each_width(static_cast<size_t>(run.skipped), n_vectors, [&](auto w, size_t vector) {
        const size_t lane = vector * N;
        score_tile<decltype(w)::value>(
            yt + lane, Rows<T>{x + run.j * stride, static_cast<std::ptrdiff_t>(stride)}, run.n,
            width, kLanes, to + run.j * kLanes + lane, tile_max_ + lane);
      });
    }
  }

  // dP += factor * d_weights in the runs.
  void add_weights_gradient(const TilePlace& at, const ConstMatrix& from, double factor) {
    const D d;
    T *by_row = mask.rows, *in_lanes = mask.rows + kLanes * kTileK;  // free after the mask
    for (size_t r = 0; r < at.n_lanes; ++r)
      widen_row(advance(from.data, sizes_.dtype,
                        static_cast<std::ptrdiff_t>(at.t0 + r) * from.stride_t +
                            static_cast<std::ptrdiff_t>(at.j0) * from.stride_i),
                sizes_.dtype, from.stride_i, at.n, by_row + r * kTileK);
    rows_to_lanes(Strided<const T>{by_row, kTileK}, at.n_lanes, at.n, in_lanes, kLanes,
                  Scale<T>(factor));
    for (size_t i = 0; i < n_runs; ++i)
      for (size_t j = runs[i].j; j < runs[i].j + runs[i].n; ++j)
        for (size_t x = j * kLanes + static_cast<size_t>(runs[i].skipped) * N;
             x < j * kLanes + n_vectors * N; x += N)
          hn::Store(hn::Add(hn::Load(d, ds + x), hn::Load(d, in_lanes + x)), d, ds + x);
  }

  // Bits of hidden keys as words of T's size: words_[w][lane].
  void split_hidden() {
    for (size_t w = 0; w < kWords; ++w)
      for (size_t r = 0; r < kLanes; ++r)
        words_[w * kLanes + r] = static_cast<U>(mask.hidden[r] >> (w * 64 / kWords));
  }

  template <bool kMasked, bool kDropped>
  HWY_INLINE void gradients(const TilePlace& at) {
    for (size_t i = 0; i < n_runs; ++i) {
      const KeyRun& run = runs[i];
      const size_t skipped = static_cast<size_t>(run.skipped) * N;
      for (size_t j = run.j; j < run.j + run.n; ++j) {
        if (kDropped && j % kDropoutKeys == 0)
          dropout_factors<T, kLanes>(head_->dropout, at.t0, at.j0 + j, factors_);
        std::fill_n(ds + j * kLanes, skipped, T{0});
        for (size_t lane = skipped; lane < n_vectors * N; lane += N)
          gradient<kMasked, kDropped>(j, lane);
      }
    }
  }

  template <bool kMasked, bool kDropped>
  HWY_INLINE void gradient(size_t j, size_t lane) {
    const D d;
    const size_t x = j * kLanes + lane;
    V score = hn::Load(d, p + x), d_weight = hn::Load(d, ds + x);
    if (kMasked && mask.biased) score = hn::Add(score, hn::Load(d, mask.bias + x));
    V weight = exp_nonpositive(d, hn::Sub(score, hn::Load(d, row_max_ + lane)));
    weight = hn::Mul(weight, hn::Load(d, inverse_ + lane));
    V kept = weight;
    if constexpr (kDropped) {
      const V factor = hn::Load(d, factors_ + j % kDropoutKeys * kLanes + lane);
      kept = hn::Mul(weight, factor);
      d_weight = hn::Mul(d_weight, factor);
    }
    V d_score = hn::Mul(weight, hn::Sub(d_weight, hn::Load(d, delta_ + lane)));
    if (kMasked && mask.any_hidden) {
      const hn::RebindToUnsigned<D> du;
      const auto bit = hn::Set(du, static_cast<U>(U{1} << (j % kBits)));
      const auto hidden =
          hn::RebindMask(d, hn::TestBit(hn::Load(du, words_ + j / kBits * kLanes + lane), bit));
      kept = hn::IfThenZeroElse(hidden, kept);
      d_score = hn::IfThenZeroElse(hidden, d_score);
    }
    hn::Store(kept, d, p + x);
    hn::Store(d_score, d, ds + x);
  }

  const GradientSizes sizes_;
  const BackwardHead* head_ = nullptr;
  T *qt_, *d_ot_;  // [d_head][kLanes] scaled, [d_v][kLanes]
  T *row_max_, *inverse_, *delta_;
  T *factors_, *tile_max_;
  U* words_;
  size_t t0_ = 0, j0_ = 0, n_keys_ = 0;
  bool keys_finite_ = false, queries_finite_ = false;
};

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
