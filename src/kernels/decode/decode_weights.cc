// Weights p[t, j] = exp(score - m) / l of a few queries, of one head or averaged over heads: a
// second pass over K that forms flash_decode's scores again. A tile of 64 keys is done for all
// heads before the next, so that a mean needs one tile of memory, whatever T_k is.
#include "kernels/decode/decode_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode/decode_weights.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/decode/row_mask-inl.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T, typename E>
class RowWeights {
 public:
  RowWeights(const AttentionWeightsArgs& args, runtime::ScratchFrame& frame) : a_(args) {
    rows_ = take_query_rows<T>(a_.n_heads * a_.n_q, a_.d_head, frame);
    for (size_t r = 0; r < rows_.n; ++r) {
      const WeightsHead& head = a_.heads[r / a_.n_q];
      const size_t t = a_.t0 + r % a_.n_q;
      const auto offset = static_cast<std::ptrdiff_t>(t) * head.q.stride_t;
      rows_.at[r] = {advance(head.q.data, a_.dtype, offset), head.q.stride_i, &head.terms,
                     &head.dropout, t};
    }
    pack(rows_, a_.dtype, a_.d_head);
    s_ = frame.take<T>(a_.n_q * kLeafK);
    mean_ = frame.take<T>(a_.n_q * kTileK);
    hidden_ = frame.take<std::uint64_t>(a_.n_q);
  }

  void run(size_t j0, size_t n_keys) {
    const hn::ScalableTag<T> d;
    const auto n_heads = hn::Set(d, static_cast<T>(a_.n_heads));
    for (size_t j = j0; j < j0 + n_keys; j += kTileK) {
      const size_t n = std::min(kTileK, j0 + n_keys - j);
      for (size_t h = 0; h < a_.n_heads; ++h) add_head(h, j, n);
      if (a_.n_heads > 1)
        for (size_t x = 0; x < a_.n_q * kTileK; x += kVectorLanes<T>)
          hn::Store(hn::Div(hn::Load(d, mean_ + x), n_heads), d, mean_ + x);
      for (size_t r = 0; r < a_.n_q; ++r)
        narrow_row(mean_ + r * kTileK, n,
                   advance(a_.w.data, a_.dtype,
                           static_cast<std::ptrdiff_t>(a_.t0 + r) * a_.w.stride_t +
                               static_cast<std::ptrdiff_t>(j) * a_.w.stride_i),
                   a_.dtype, a_.w.stride_i);
    }
  }

 private:
  QueryRows<T> rows_of_head(size_t h) const {
    QueryRows<T> rows = rows_;
    rows.n = a_.n_q;
    rows.at += h * a_.n_q;
    rows.q += h * a_.n_q * padded<T>(a_.d_head);
    return rows;
  }

  // A row that is NaN is NaN in all of its keys; one that sees no key has 0.
  void add_head(size_t h, size_t j0, size_t n) {
    const hn::ScalableTag<T> d;
    const WeightsHead& head = a_.heads[h];
    const QueryRows<T> rows = rows_of_head(h);
    masked_scores<T, E>(rows, head.k, a_.dtype, a_.d_head, j0, n, Ahead(), hidden_, s_);
    for (size_t r = 0; r < a_.n_q; ++r) {
      const T m = static_cast<const T*>(head.row_max)[a_.t0 + r];
      const T l = static_cast<const T*>(head.row_sum)[a_.t0 + r];
      const auto base = hn::Set(d, m == kNegInf<T> ? T{0} : m);
      const auto inverse = hn::Set(d, l == 0 ? T{0} : T{1} / l);
      T *p = s_ + r * kLeafK, *mean = mean_ + r * kTileK;
      for (size_t x = 0; x < kTileK; x += kVectorLanes<T>)
        hn::Store(hn::Mul(exp_nonpositive(d, hn::Sub(hn::Load(d, p + x), base)), inverse), d,
                  p + x);
      drop_row(rows.at[r], j0, n, p);
      for (size_t x = 0; x < kTileK; x += kVectorLanes<T>) {
        const auto weight = hn::Load(d, p + x);
        hn::Store(h == 0 ? weight : hn::Add(hn::Load(d, mean + x), weight), d, mean + x);
      }
    }
  }

  const AttentionWeightsArgs& a_;
  QueryRows<T> rows_;      // of all heads
  T* s_;                   // [n_q][kLeafK] scores of a tile of one head, then weights
  T* mean_;                // [n_q][kTileK] weights, or their sum over the heads
  std::uint64_t* hidden_;  // [n_q]
};

void decode_weights_on_target(const AttentionWeightsArgs& a, size_t j0, size_t n) {
  bool all_in_place = true;
  for (size_t h = 0; h < a.n_heads; ++h) all_in_place &= in_place(a.heads[h].k, a.d_head);
  with_element_type(a.dtype, all_in_place, [&](auto t, auto e) {
    runtime::ScratchFrame frame;
    RowWeights<decltype(t), decltype(e)>(a, frame).run(j0, n);
  });
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(decode_weights_on_target);

void decode_weights(const AttentionWeightsArgs& args, std::size_t j0, std::size_t n) {
  if (args.n_q != 0 && args.n_heads != 0)
    HWY_DYNAMIC_DISPATCH(decode_weights_on_target)(args, j0, n);
}

}  // namespace headwise::kernels
#endif
