// Forward attention of bf16 for a block of queries of one (batch, head), on vdpbf16ps: each lane
// adds the products of two pairs of bf16 to an f32, twice the work of a multiply-add.
//   S^T = scale (K Q^T), pairs along d_head   P^T rounded to bf16   O^T = V^T P^T, pairs of keys
// The softmax, row max and row sum are f32, of scores and weights that have not been rounded.
// The instruction takes subnormal numbers for 0 and rounds each sum to nearest even. Its order is
// fixed, so the bits don't depend on threads or batch, but they are not those of other kernels.
// Memory: K is read in place, V is interleaved once per tile and block of queries, a fortieth of
// the work at 64 queries. Bound by arithmetic; scratch as flash_forward's.
#include "kernels/bf16/dot_forward.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16/dot_forward.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/bf16/pairs-inl.h"
#include "kernels/flash_tile-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using VF = hn::Vec<hn::ScalableTag<float>>;

HWY_INLINE VF add_products(VF sum, __m512i a, __m512i b) {
  return VF{
      _mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
}

HWY_INLINE __m512i broadcast_pair(const void* from) {
  std::int32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

struct QueryPairs {
  const float* data;  // [n_pairs][lanes]
  size_t n_pairs, lanes;
  float scale;
};

// Scores of MR keys, as score_rows.
template <int MR, int NV>
HWY_INLINE void score_pair_rows(const QueryPairs& q, Rows<std::uint16_t> k, float* HWY_RESTRICT s,
                                float* HWY_RESTRICT tile_max) {
  const hn::ScalableTag<float> d;
  constexpr size_t N = kVectorLanes<float>;
  VF acc[MR][NV];
  set_zero<float>(acc);
  const float* HWY_RESTRICT pairs = q.data;
  for (size_t c = 0; c < q.n_pairs; ++c, pairs += q.lanes, k.data += 2) {
    __m512i query[NV];
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) query[x] = _mm512_load_si512(pairs + x * N);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      const __m512i key = broadcast_pair(k.data + r * k.stride);
      HWY_UNROLL(4)
      for (int x = 0; x < NV; ++x) acc[r][x] = add_products(acc[r][x], key, query[x]);
    }
  }
  const VF scale = hn::Set(d, q.scale);
  HWY_UNROLL(16)
  for (int r = 0; r < MR; ++r) {
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) acc[r][x] = hn::Mul(acc[r][x], scale);
  }
  store_scores(acc, q.lanes, s, tile_max);
}

template <int NV>
HWY_NOINLINE void score_pair_tile(const QueryPairs& q, Rows<std::uint16_t> k, size_t n, float* s,
                                  float* tile_max) {
  size_t j = 0;
  const auto at = [&k](size_t row) {
    return Rows<std::uint16_t>{k.data + static_cast<std::ptrdiff_t>(row) * k.stride, k.stride};
  };
  for (; j + kBlockRows<NV> <= n; j += kBlockRows<NV>)
    score_pair_rows<kBlockRows<NV>, NV>(q, at(j), s + j * q.lanes, tile_max);
  for (; j + 4 <= n; j += 4) score_pair_rows<4, NV>(q, at(j), s + j * q.lanes, tile_max);
  for (; j < n; ++j) score_pair_rows<1, NV>(q, at(j), s + j * q.lanes, tile_max);
}

struct ValuePairs {
  const float* data;  // [n_pairs(kTileK)][stride]
  size_t stride;
};

// As add_run.
template <int W, int MR, int NV>
HWY_INLINE void add_pair_run(const float* HWY_RESTRICT p, ValuePairs v, const KeyRun& run,
                             VF (&acc)[MR][NV]) {
  if constexpr (W > 1) {
    if (NV - run.skipped < W) {
      add_pair_run<W - 1>(p, v, run, acc);
      return;
    }
  }
  constexpr size_t N = kVectorLanes<float>, kLanes = NV * N;
  const float* row = v.data + run.j / 2 * v.stride;
  const float* weights = p + run.j / 2 * kLanes;
  for (size_t c = 0; c < n_pairs(run.n); ++c, row += v.stride, weights += kLanes) {
    __m512i weight[NV];
    HWY_UNROLL(4)
    for (int x = NV - W; x < NV; ++x) weight[x] = _mm512_load_si512(weights + x * N);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      const __m512i value = broadcast_pair(row + r);
      HWY_UNROLL(4)
      for (int x = NV - W; x < NV; ++x) acc[r][x] = add_products(acc[r][x], value, weight[x]);
    }
  }
}

template <int MR, int NV>
HWY_INLINE void value_pair_rows(const float* p, ValuePairs v, const KeyRun* runs, size_t n_runs,
                                Update<float> update, float* o) {
  VF acc[MR][NV];
  set_zero<float>(acc);
  for (const KeyRun* run = runs; run != runs + n_runs; ++run) add_pair_run<NV>(p, v, *run, acc);
  store_sums(acc, update, o);
}

template <int NV>
HWY_NOINLINE void value_pair_tile(const float* p, ValuePairs v, const KeyRun* runs, size_t n_runs,
                                  size_t d_v, Update<float> update, float* o) {
  constexpr size_t kLanes = kBlockLanes<float, NV>;
  size_t i = 0;
  const auto at = [&v](size_t column) { return ValuePairs{v.data + column, v.stride}; };
  for (; i + kBlockRows<NV> <= d_v; i += kBlockRows<NV>)
    value_pair_rows<kBlockRows<NV>, NV>(p, at(i), runs, n_runs, update, o + i * kLanes);
  for (; i + 4 <= d_v; i += 4)
    value_pair_rows<4, NV>(p, at(i), runs, n_runs, update, o + i * kLanes);
  for (; i < d_v; ++i) value_pair_rows<1, NV>(p, at(i), runs, n_runs, update, o + i * kLanes);
}

// Seconds of 4096 instructions on 16 sums, more than the latency of either needs.
template <bool kPairs>
HWY_NOINLINE double seconds_of_sums() {
  const hn::ScalableTag<float> d;
  volatile float opaque = 0.0f;
  const VF x = hn::Set(d, opaque);
  VF sums[16];  // all different, or the compiler would make them one
  HWY_UNROLL(16)
  for (int i = 0; i < 16; ++i) sums[i] = hn::Set(d, opaque + static_cast<float>(i));
  const auto start = std::chrono::steady_clock::now();
  for (int n = 0; n < 256; ++n) {
    HWY_UNROLL(16)
    for (VF& sum : sums) {
      const __m512i bits = _mm512_castps_si512(x.raw);
      sum = kPairs ? add_products(sum, bits, bits) : hn::MulAdd(x, x, sum);
    }
  }
  VF total = x;
  HWY_UNROLL(16)
  for (const VF& sum : sums) total = hn::Add(total, sum);
  opaque = hn::GetLane(total);  // before the clock is read
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// On Zen 4 and 5 and Cooper Lake the rates are equal, on Sapphire and Emerald Rapids this one is
// half the other: far enough apart for the best of a few short turns.
bool dot_is_fast_on_target() {
  double pairs = 1, fma = 1;
  for (int turn = 0; turn < 8; ++turn) {
    pairs = std::min(pairs, seconds_of_sums<true>());
    fma = std::min(fma, seconds_of_sums<false>());
  }
  return pairs < 1.4 * fma;
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {

// For the widest block; narrower ones use the front of it.
struct DotMemory {
  float* qt;              // [n_pairs(d_head)][kLanes] pairs
  std::uint16_t* k_rows;  // [kTileK][2 n_pairs(d_head)] where K cannot be read in place
  std::uint16_t* v_rows;  // [kTileK][d_v] the same, or without infinities and NaN
  float* v_pairs;         // [kTileK / 2][row_of_pairs(d_v)]
  float* p_pairs;         // [kTileK / 2][kLanes]
  float* v_wide;          // [kTileK][d_v]
};

template <int NV>
class DotProducts {
 public:
  using T = float;
  using Memory = DotMemory;
  static constexpr int kNV = NV;
  static constexpr size_t kLanes = kBlockLanes<T, NV>;

  template <class Frame>
  static Memory take_memory(const FlashForwardArgs& a, Frame& frame) {
    Memory m;
    m.qt = frame.template take<float>(n_pairs(a.d_head) * kLanes);
    m.k_rows = frame.template take<std::uint16_t>(kTileK * 2 * n_pairs(a.d_head));
    m.v_rows = frame.template take<std::uint16_t>(kTileK * a.d_v);
    m.v_pairs = frame.template take<float>(kTileK / 2 * row_of_pairs(a.d_v));
    m.p_pairs = frame.template take<float>(kTileK / 2 * kLanes);
    m.v_wide = frame.template take<float>(kTileK * a.d_v);
    return m;
  }

  DotProducts(const FlashForwardArgs& args, const Memory& memory) : a_(args), memory_(memory) {}

  void pack_queries(size_t t0, size_t n_lanes, float* rows) {
    pack_query_pairs<NV>(a_.q, t0, n_lanes, a_.d_head, rows, memory_.qt);
  }

  void start_tile(const TilePlace& at) {
    at_ = at;
    k_ = bf16_rows(a_.k, at.j0, at.n, a_.d_head, 2 * n_pairs(a_.d_head), memory_.k_rows);
  }

  template <int W>
  void score(size_t j, size_t n, size_t lane, float* s, float* tile_max) {
    const float scale = a_.d_head == 0 ? 0.0f : static_cast<float>(a_.terms.scale);
    score_pair_tile<W>({memory_.qt + lane, n_pairs(a_.d_head), kLanes, scale},
                       {k_.data + static_cast<std::ptrdiff_t>(j) * k_.stride, k_.stride}, n, s,
                       tile_max);
  }

  void add_values(const float* p, const KeyRun* runs, size_t n_runs,
                  const MaskTile<NV, float>& mask, const Update<float>& update, float* o) {
    Rows<std::uint16_t> v = bf16_rows(a_.v, at_.j0, at_.n, a_.d_v, a_.d_v, memory_.v_rows);
    const bool special = mask.any_hidden && any_special(v, at_.n, a_.d_v);
    if (special) v = without_specials(v, at_.n, a_.d_v, memory_.v_rows);
    const ValuePairs pairs{memory_.v_pairs, row_of_pairs(a_.d_v)};
    pack_value_pairs(v, at_.n, a_.d_v, memory_.v_pairs);
    for (const KeyRun* run = runs; run != runs + n_runs; ++run)
      pack_weight_pairs<NV>(p + run->j * kLanes, run->n, kLanes,
                            memory_.p_pairs + run->j / 2 * kLanes);
    value_pair_tile<NV>(memory_.p_pairs, pairs, runs, n_runs, a_.d_v, update, o);
    if (!special) return;
    const Rows<float> wide = rows_of(a_.v, a_.dtype, at_.j0, at_.n, a_.d_v, memory_.v_wide);
    add_special_values<NV>(p, wide, at_.n, a_.d_v, mask.hidden, o);
  }

 private:
  const FlashForwardArgs& a_;
  const Memory& memory_;
  TilePlace at_{};
  Rows<std::uint16_t> k_{};
};

bool dot_on_target() { return true; }

void dot_forward_on_target(const FlashForwardArgs& a) { run_blocks<DotProducts>(a); }

size_t dot_scratch_on_target(const FlashForwardArgs& a) {
  return scratch_of_blocks<DotProducts>(a);
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#else
HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {

bool dot_on_target() { return false; }
bool dot_is_fast_on_target() { return false; }
void dot_forward_on_target(const FlashForwardArgs&) {}
size_t dot_scratch_on_target(const FlashForwardArgs&) { return 0; }

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(dot_on_target);
HWY_EXPORT(dot_is_fast_on_target);
HWY_EXPORT(dot_forward_on_target);
HWY_EXPORT(dot_scratch_on_target);

bool bf16_dot_on_cpu() {
#if HWY_ARCH_X86
  static const bool on_cpu = (HWY_TARGETS & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512bf16");
  return on_cpu;
#else
  return false;
#endif
}

bool bf16_dot_available() { return bf16_dot_on_cpu() && HWY_DYNAMIC_DISPATCH(dot_on_target)(); }

bool bf16_dot_is_fast() {
  if (!bf16_dot_available()) return false;  // now; the instruction set may be changed
  static const bool fast = HWY_DYNAMIC_DISPATCH(dot_is_fast_on_target)();
  return fast;
}

void bf16_dot_forward(const FlashForwardArgs& args) {
  if (args.n_q != 0) HWY_DYNAMIC_DISPATCH(dot_forward_on_target)(args);
}

std::size_t bf16_dot_scratch(const FlashForwardArgs& args) {
  return HWY_DYNAMIC_DISPATCH(dot_scratch_on_target)(args);
}

}  // namespace headwise::kernels
#endif
