// Dropout factors of a tile: core/philox.h with one query a lane.
#if defined(HEADWISE_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_PHILOX_INL_H_
#undef HEADWISE_KERNELS_PHILOX_INL_H_
#else
#define HEADWISE_KERNELS_PHILOX_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/philox.h"
#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/score_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A 32-bit word in each 64-bit lane, which its products need.
using PhiloxTag = hn::ScalableTag<std::uint64_t>;
using PhiloxVec = hn::Vec<PhiloxTag>;

// 64-bit products of the words in x.
HWY_INLINE PhiloxVec times(PhiloxVec x, std::uint32_t factor) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(PhiloxTag(), hn::GetLane(x) * factor);
#else
  const hn::Repartition<std::uint32_t, PhiloxTag> d32;
  return hn::MulEven(hn::BitCast(d32, x), hn::Set(d32, factor));
#endif
}

HWY_INLINE void philox_lanes(PhiloxVec (&x)[4], std::uint64_t seed) {
  const PhiloxTag d;
  const auto low = hn::Set(d, 0xffffffffu);
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < core::kPhiloxRounds; ++round) {
    const auto a = times(x[0], core::kPhiloxMultiplier[0]);
    const auto b = times(x[2], core::kPhiloxMultiplier[1]);
    x[0] = hn::Xor(hn::ShiftRight<32>(b), hn::Xor(x[1], hn::Set(d, std::uint64_t{key0})));
    x[1] = hn::And(b, low);
    x[2] = hn::Xor(hn::ShiftRight<32>(a), hn::Xor(x[3], hn::Set(d, std::uint64_t{key1})));
    x[3] = hn::And(a, low);
    key0 += core::kPhiloxWeyl[0];
    key1 += core::kPhiloxWeyl[1];
  }
}

constexpr size_t kDropoutKeys = 4;  // keys of one counter

// factors[j][lane], kDropoutKeys keys from the multiple of four j0: 1 / (1 - p) where the weight of
// query t0 + lane is kept, else 0.
template <typename T, size_t kLanes>
void dropout_factors(const Dropout& dropout, size_t t0, size_t j0, T* factors) {
  const PhiloxTag d;
  const hn::RebindToSigned<PhiloxTag> di;
  const hn::RebindToFloat<PhiloxTag> df;
  const size_t N = hn::Lanes(d);
  static_assert(kLanes % hn::MaxLanes(PhiloxTag()) == 0);
  const auto last_dropped =
      hn::Set(di, static_cast<std::int64_t>(core::dropout_threshold(dropout.p)) - 1);
  const auto kept = hn::Set(df, 1.0 / (1.0 - dropout.p));
  for (size_t lane = 0; lane < kLanes; lane += N) {
    const auto low = hn::Set(d, 0xffffffffu);
    PhiloxVec x[4] = {hn::And(hn::Iota(d, static_cast<std::uint64_t>(t0 + lane)), low),
                      hn::Set(d, static_cast<std::uint32_t>(j0 / kDropoutKeys)),
                      hn::Set(d, static_cast<std::uint32_t>(dropout.head)),
                      hn::Set(d, dropout.head >> 32)};
    philox_lanes(x, dropout.seed);
    for (size_t w = 0; w < kDropoutKeys; ++w) {
      const auto keep = hn::RebindMask(df, hn::Gt(hn::BitCast(di, x[w]), last_dropped));
      const auto factor = hn::IfThenElseZero(keep, kept);
      T* to = factors + w * kLanes + lane;
      if constexpr (std::is_same_v<T, double>) {
        hn::StoreU(factor, df, to);
      } else {
        const hn::Rebind<float, decltype(df)> d32;
        hn::StoreU(hn::DemoteTo(d32, factor), d32, to);
      }
    }
  }
}

// p *= factor for a tile of weights; `factors` holds kDropoutKeys * kLanes.
template <int NV, typename T>
void drop_tile(const Dropout& dropout, const TilePlace& at, T* factors, T* p) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  for (size_t j = 0; j < at.n; ++j, p += kLanes) {
    if (j % kDropoutKeys == 0) dropout_factors<T, kLanes>(dropout, at.t0, at.j0 + j, factors);
    const T* factor = factors + j % kDropoutKeys * kLanes;
    for (size_t r = 0; r < kLanes; r += N)
      hn::Store(hn::Mul(hn::Load(d, p + r), hn::Load(d, factor + r)), d, p + r);
  }
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
