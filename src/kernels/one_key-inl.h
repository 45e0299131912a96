// Softmax over one key: its weight is exactly 1 where its score is a number, which moderate numbers
// ensure, so that nobody has to know the score. Bound by reading Q and writing O.
#if defined(HEADWISE_KERNELS_ONE_KEY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_ONE_KEY_INL_H_
#undef HEADWISE_KERNELS_ONE_KEY_INL_H_
#else
#define HEADWISE_KERNELS_ONE_KEY_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "hwy/highway.h"
#include "kernels/flash_forward.h"
#include "kernels/mask_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The first n elements, n less than a vector's; nothing beyond them is touched.
template <class D, typename T>
HWY_INLINE hn::Vec<D> load_first(D d, const T* from, size_t n) {
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, n), d, from);
#else
  HWY_ALIGN T x[hn::MaxLanes(D())] = {};
  for (size_t i = 0; i < n; ++i) x[i] = from[i];
  return hn::Load(d, x);
#endif
}

template <class D, typename T>
HWY_INLINE void store_first(hn::Vec<D> v, D d, T* to, size_t n) {
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, n), d, to);
#else
  HWY_ALIGN T x[hn::MaxLanes(D())];
  hn::Store(v, d, x);
  for (size_t i = 0; i < n; ++i) to[i] = x[i];
#endif
}

template <typename T>
class OneKey {
 public:
  static bool suits(const FlashForwardArgs& a) {
    return a.T_k == 1 && !(a.dropout.p > 0) && a.row_max == nullptr && a.row_sum == nullptr;
  }

  // Rows of q, k, v and o are read and written in place.
  explicit OneKey(const FlashForwardArgs& a) : a_(a) {
    if (!suits(a)) return;
    double sum = 0;
    for (size_t i = 0; i < a.d_head; ++i)
      sum += std::abs(static_cast<double>(static_cast<const T*>(a.k.data)[i]));
    // A score is at most this factor times the largest element of its query.
    const double factor = std::abs(a.terms.scale) * std::max(sum, 1.0);
    if (std::isfinite(factor)) limit_ = static_cast<T>(kMost / std::max(factor, 1.0));
  }

  // The value for queries that see the key, 0 for others; false where somebody has to compute.
  template <int NV>
  bool run(size_t t0, size_t n, const MaskTile<NV, T>& mask) const {
    if (!(limit_ > 0)) return false;
    for (size_t r = 0; r < n; ++r) {
      if (mask.any_hidden && (mask.hidden[r] & 1) != 0) continue;
      if (!small(t0 + r) || (mask.biased && !(std::abs(mask.bias[r]) <= static_cast<T>(kMost))))
        return false;
    }
    for (size_t r = 0; r < n; ++r) write(t0 + r, mask.any_hidden && (mask.hidden[r] & 1) != 0);
    return true;
  }

 private:
  // Far enough from the largest number for rounding, and for two of them.
  static constexpr double kMost = static_cast<double>(std::numeric_limits<T>::max()) / 8;
  static constexpr size_t N = kVectorLanes<T>;

  // Is every element of the query a number, and small enough?
  bool small(size_t t) const {
    const hn::ScalableTag<T> d;
    const T* q = static_cast<const T*>(a_.q.data) + static_cast<std::ptrdiff_t>(t) * a_.q.stride_t;
    const auto limit = hn::Set(d, limit_);
    auto all = hn::Eq(limit, limit);
    size_t i = 0;
    for (; i + N <= a_.d_head; i += N)
      all = hn::And(all, hn::Le(hn::Abs(hn::LoadU(d, q + i)), limit));
    if (i < a_.d_head)
      all = hn::And(all, hn::Le(hn::Abs(load_first(d, q + i, a_.d_head - i)), limit));
    return hn::AllTrue(d, all);
  }

  void write(size_t t, bool hidden) const {
    const hn::ScalableTag<T> d;
    T* o = static_cast<T*>(a_.o.data) + static_cast<std::ptrdiff_t>(t) * a_.o.stride_t;
    if (hidden) {
      std::fill_n(o, a_.d_v, T{0});
      return;
    }
    const T* v = static_cast<const T*>(a_.v.data);
    size_t i = 0;  // + 0: a sum that starts at 0 is never -0
    for (; i + N <= a_.d_v; i += N) hn::StoreU(hn::Add(hn::LoadU(d, v + i), hn::Zero(d)), d, o + i);
    if (i < a_.d_v)
      store_first(hn::Add(load_first(d, v + i, a_.d_v - i), hn::Zero(d)), d, o + i, a_.d_v - i);
  }

  const FlashForwardArgs& a_;
  T limit_ = 0;  // of a query's elements; 0: compute
};

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
