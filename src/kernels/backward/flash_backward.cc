// Gradients of attention: dQ, dK and dV of ranges of queries and keys, in the arithmetic of f32 or
// f64, each rounded to its dtype once.
//   dV = P^T dO   dK = scale dS^T Q   dQ = scale dS K   (gradient_tile-inl.h has P and dS)
// A block of keys outside, queries inside: dK and dV of the block stay in L2, dQ lies in scratch
// [n_heads][n_q][d_head], with queries in lanes. An element is a sum over tiles in ascending order:
// dQ over tiles of keys, dK and dV over heads and their tiles of queries, however the head is cut
// into calls. Bound by arithmetic: five products of a tile, 10 tiles of memory a tile.
#include "kernels/backward/flash_backward.h"

#include <algorithm>
#include <cstddef>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward/flash_backward.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/backward/gradient_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
class Backward {
 public:
  template <class Frame>
  Backward(const FlashBackwardArgs& args, Frame& frame)
      : a_(args),
        stride_(padded<T>(args.d_head)),
        stride_v_(padded<T>(args.d_v)),
        tile_({args.dtype, args.d_head, args.d_v, kBackwardBlock}, frame) {
    if (wants_keys()) {
      dk_ = frame.template take<T>(kBackwardBlock * stride_);
      dv_ = frame.template take<T>(kBackwardBlock * stride_v_);
    }
    if (a_.dq != nullptr) dq_ = frame.template take<T>(a_.n_heads * n_chunks() * chunk_size());
  }

  void run() {
    if (a_.dq != nullptr) std::fill_n(dq_, a_.n_heads * n_chunks() * chunk_size(), T{0});
    for (size_t j0 = a_.j0; j0 < a_.j0 + a_.n_k; j0 += kBackwardBlock)
      run_keys(j0, std::min(kBackwardBlock, a_.j0 + a_.n_k - j0));
    for (size_t h = 0; h < a_.n_heads && a_.dq != nullptr; ++h)
      for (size_t c = 0; c < n_chunks(); ++c) write_dq(h, c);
  }

 private:
  static constexpr size_t kLanes = kBackwardTile;

  bool wants_keys() const { return a_.dk.data != nullptr || a_.dv.data != nullptr; }
  size_t n_chunks() const { return (a_.n_q + kLanes - 1) / kLanes; }
  size_t chunk_size() const { return a_.d_head * kLanes; }
  T* dq_of(size_t h, size_t c) { return dq_ + (h * n_chunks() + c) * chunk_size(); }

  void run_keys(size_t j0, size_t n) {
    if (wants_keys()) {
      std::fill_n(dk_, n * stride_, T{0});
      std::fill_n(dv_, n * stride_v_, T{0});
    }
    if (a_.n_heads != 0) tile_.load_keys(a_.heads[0], j0, n);
    for (size_t h = 0; h < a_.n_heads; ++h)
      for (size_t c = 0; c < n_chunks(); ++c) run_chunk(h, c, j0, n);
    if (a_.dk.data != nullptr) {
      if (a_.n_heads != 0) scale_values(a_.heads[0].terms.scale, n * stride_, dk_);
      write_rows(dk_, stride_, j0, n, a_.d_head, a_.dk, a_.dk_dtype);
    }
    if (a_.dv.data != nullptr) write_rows(dv_, stride_v_, j0, n, a_.d_v, a_.dv, a_.dv_dtype);
  }

  // One head's queries of a chunk against a block of keys.
  void run_chunk(size_t h, size_t c, size_t j0, size_t n) {
    const BackwardHead& head = a_.heads[h];
    const size_t t0 = a_.t0 + c * kLanes, n_lanes = std::min(kLanes, a_.t0 + a_.n_q - t0);
    const bool none = j0 >= diagonal_end(head.terms, t0 + n_lanes - 1);
    if (none && j0 + n <= head.terms.n_maskable) return;
    tile_.load_queries(head, t0, n_lanes);
    for (size_t j = j0; j < j0 + n; j += kTileK) {
      if (!tile_.run(j)) continue;
      T* dq = a_.dq != nullptr ? dq_of(h, c) : nullptr;
      T* dk = a_.dk.data != nullptr ? dk_ + (j - j0) * stride_ : nullptr;
      T* dv = a_.dv.data != nullptr ? dv_ + (j - j0) * stride_v_ : nullptr;
      if (tile_.products_are_safe())
        add(j, dq, dk, dv);
      else
        add_visible(j, std::min(kTileK, j0 + n - j), {dq, dk, dv});
    }
  }

  void add(size_t j, T* dq, T* dk, T* dv) {
    if (dq != nullptr)
      for_each_width(0, tile_.n_vectors, [&](auto w, size_t vector) {
        const size_t lane = vector * kVectorLanes<T>;
        add_key_sums<decltype(w)::value>(tile_.ds + lane, tile_.key_rows(j), stride_, a_.d_head,
                                         tile_.runs, tile_.n_runs, dq + lane);
      });
    for (size_t i = 0; i < tile_.n_runs; ++i) {
      const KeyRun& run = tile_.runs[i];
      const LaneRange lanes{static_cast<size_t>(run.skipped) * kVectorLanes<T>, tile_.n_lanes};
      const size_t at = run.j * kLanes;
      if (dv != nullptr)
        add_queries(tile_.p + at, tile_.d_o_rows, stride_v_, run.n, lanes, dv + run.j * stride_v_);
      if (dk != nullptr)
        add_queries(tile_.ds + at, tile_.q_rows, stride_, run.n, lanes, dk + run.j * stride_);
    }
  }

  static void add_queries(const T* p, const T* x, size_t stride, size_t n, LaneRange lanes, T* c) {
    for_each_width(0, stride / kVectorLanes<T>, [&](auto w, size_t vector) {
      const size_t i = vector * kVectorLanes<T>;
      add_query_sums<decltype(w)::value>(p, x + i, stride, n, lanes, c + i);
    });
  }

  struct Sums {
    T *dq, *dk, *dv;
  };

  // The same, pair by pair, leaving out hidden ones: for a tile that holds NaN or inf.
  void add_visible(size_t j0, size_t n, const Sums& to) {
    const T* keys = tile_.key_rows(j0);
    for (size_t j = 0; j < n; ++j)
      for (size_t r = 0; r < tile_.n_lanes; ++r) {
        if ((tile_.mask.hidden[r] >> j & 1) != 0) continue;
        const T p = tile_.p[j * kLanes + r], ds = tile_.ds[j * kLanes + r];
        for (size_t i = 0; to.dq != nullptr && i < a_.d_head; ++i)
          to.dq[i * kLanes + r] += ds * keys[j * stride_ + i];
        for (size_t i = 0; to.dk != nullptr && i < a_.d_head; ++i)
          to.dk[j * stride_ + i] += ds * tile_.q_rows[r * stride_ + i];
        for (size_t i = 0; to.dv != nullptr && i < a_.d_v; ++i)
          to.dv[j * stride_v_ + i] += p * tile_.d_o_rows[r * stride_v_ + i];
      }
  }

  void write_dq(size_t h, size_t c) {
    const size_t t0 = a_.t0 + c * kLanes, n = std::min(kLanes, a_.t0 + a_.n_q - t0);
    T* dq = dq_of(h, c);
    scale_values(a_.heads[h].terms.scale, chunk_size(), dq);
    lanes_to_rows(dq, kLanes, a_.d_head, n,
                  Strided<T>{tile_.q_rows, static_cast<std::ptrdiff_t>(stride_)});
    write_rows(tile_.q_rows, stride_, t0, n, a_.d_head, a_.dq[h], a_.dq_dtype);
  }

  static void write_rows(const T* from, size_t stride, size_t r0, size_t n, size_t width,
                         const Matrix& to, DType dtype) {
    for (size_t r = 0; r < n; ++r)
      narrow_row(from + r * stride, width,
                 advance(to.data, dtype, static_cast<std::ptrdiff_t>(r0 + r) * to.stride_t), dtype,
                 to.stride_i);
  }

  const FlashBackwardArgs& a_;
  const size_t stride_, stride_v_;  // of rows of d_head and d_v features
  GradientTile<T> tile_;
  T *dk_ = nullptr, *dv_ = nullptr;  // [kBackwardBlock][stride]
  T* dq_ = nullptr;                  // [n_heads][n_chunks][d_head][kLanes]
};

template <typename T>
void backward(const FlashBackwardArgs& a) {
  runtime::ScratchFrame frame;
  Backward<T>(a, frame).run();
}

void flash_backward_on_target(const FlashBackwardArgs& a) {
  if (a.dtype == DType::f64)
    backward<double>(a);
  else
    backward<float>(a);
}

size_t flash_backward_scratch_on_target(const FlashBackwardArgs& a) {
  runtime::ScratchSize size;
  if (a.dtype == DType::f64)
    Backward<double>(a, size);
  else
    Backward<float>(a, size);
  return size.bytes();
}

template <typename T>
void delta_of_weights(const FlashBackwardArgs& a, T* delta) {
  const hn::ScalableTag<T> d;
  constexpr size_t kLanes = kBackwardTile, N = kVectorLanes<T>;
  runtime::ScratchFrame frame;
  GradientTile<T> tile({a.dtype, a.d_head, a.d_v, kTileK}, frame);
  HWY_ALIGN T sums[kLanes];
  for (size_t t0 = 0; t0 < a.T_q; t0 += kLanes) {
    const size_t n = std::min(kLanes, a.T_q - t0);
    tile.load_queries(a.heads[0], t0, n);
    std::fill_n(sums, kLanes, T{0});
    for (size_t j0 = 0; j0 < a.T_k; j0 += kTileK) {
      tile.load_keys(a.heads[0], j0, std::min(kTileK, a.T_k - j0));
      if (!tile.run(j0)) continue;
      for (size_t r = 0; r < tile.n_vectors * N; r += N) {
        auto sum = hn::Zero(d);
        for (size_t i = 0; i < tile.n_runs; ++i)
          for (size_t j = tile.runs[i].j; j < tile.runs[i].j + tile.runs[i].n; ++j)
            sum = hn::Add(sum, hn::Load(d, tile.ds + j * kLanes + r));
        hn::Store(hn::Add(hn::Load(d, sums + r), sum), d, sums + r);
      }
    }
    std::copy_n(sums, n, delta + t0);
  }
}

void backward_delta_on_target(const FlashBackwardArgs& a, void* delta) {
  if (a.dtype == DType::f64)
    delta_of_weights(a, static_cast<double*>(delta));
  else
    delta_of_weights(a, static_cast<float*>(delta));
}

// delta: a chain over the features, with queries in lanes: the same bits for any vector.
template <typename T>
void rows(const BackwardRowsArgs& a) {
  const hn::ScalableTag<T> d;
  constexpr size_t kLanes = kBackwardTile, N = kVectorLanes<T>;
  runtime::ScratchFrame frame;
  const size_t stride = padded<T>(a.d_v);
  T* by_row = frame.take<T>(kLanes * stride);
  T* o = frame.take<T>(a.d_v * kLanes);
  T* d_o = frame.take<T>(a.d_v * kLanes);
  HWY_ALIGN T delta[kLanes];
  for (size_t t0 = a.t0; t0 < a.t0 + a.n_q; t0 += kLanes) {
    const size_t n = std::min(kLanes, a.t0 + a.n_q - t0);
    const auto load = [&](const ConstMatrix& x, T* to) {
      copy_rows(x, a.dtype, t0, n, a.d_v, by_row);
      rows_to_lanes(Strided<const T>{by_row, static_cast<std::ptrdiff_t>(stride)}, n, a.d_v, to,
                    kLanes, [](auto value) { return value; });
    };
    load(a.o, o);
    load(a.d_o, d_o);
    for (size_t r = 0; r < kLanes; r += N) {
      auto sum = hn::Zero(d);
      for (size_t x = r; x < a.d_v * kLanes; x += kLanes)
        sum = hn::MulAdd(hn::Load(d, o + x), hn::Load(d, d_o + x), sum);
      hn::Store(sum, d, delta + r);
    }
    T* row_max = static_cast<T*>(a.row_max) + t0;
    T* inverse = static_cast<T*>(a.inverse) + t0;
    std::copy_n(delta, n, static_cast<T*>(a.delta) + t0);
    for (size_t r = 0; r < n; ++r) {
      if (row_max[r] == kNegInf<T>) row_max[r] = T{0};
      inverse[r] = inverse[r] == 0 ? T{0} : T{1} / inverse[r];
    }
  }
}

void backward_rows_on_target(const BackwardRowsArgs& a) {
  if (a.dtype == DType::f64)
    rows<double>(a);
  else
    rows<float>(a);
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(flash_backward_on_target);
HWY_EXPORT(flash_backward_scratch_on_target);
HWY_EXPORT(backward_rows_on_target);
HWY_EXPORT(backward_delta_on_target);

std::size_t flash_backward_scratch(const FlashBackwardArgs& args) {
  return HWY_DYNAMIC_DISPATCH(flash_backward_scratch_on_target)(args);
}

void flash_backward(const FlashBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(flash_backward_on_target)(args);
}

void backward_rows(const BackwardRowsArgs& args) {
  if (args.n_q != 0) HWY_DYNAMIC_DISPATCH(backward_rows_on_target)(args);
}

void backward_delta(const FlashBackwardArgs& args, void* delta) {
  HWY_DYNAMIC_DISPATCH(backward_delta_on_target)(args, delta);
}

}  // namespace headwise::kernels
#endif
