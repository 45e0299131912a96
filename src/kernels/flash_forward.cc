// Forward attention for a block of queries of one (batch, head) in the arithmetic of f32 or f64;
// 16-bit rows are widened a tile at a time. K and V are read from their natural rows.
// Memory: K and V are read once per 4 vectors of queries, from L2 while one head fits there: 2 d
// element loads for 256 d multiply-adds at 64 lanes, so arithmetic bounds it. Scratch is
// (d_head + (2 + log2(T_k / 512)) d_v + kTileK) * lanes, whatever T_q is.
#include "kernels/flash_forward.h"

#include <cstddef>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/flash_forward.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/few_keys-inl.h"
#include "kernels/flash_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// For the widest block; narrower ones use the front of it.
template <typename T>
struct FmaMemory {
  T* qt;        // [d_head][kLanes]
  T* k_rows;    // [kTileK][d_head] widened
  T* v_rows;    // [kTileK][d_v] widened
  T* v_finite;  // [kTileK][d_v]
};

template <int NV, typename Element>
class FmaProducts {
 public:
  using T = Element;
  static constexpr int kNV = NV;
  static constexpr size_t kLanes = kBlockLanes<T, NV>;

  using Memory = FmaMemory<T>;
  template <class Frame>
  static Memory take_memory(const FlashForwardArgs& a, Frame& frame) {
    Memory m;
    m.qt = frame.template take<T>(a.d_head * kLanes);
    m.k_rows = frame.template take<T>(kTileK * a.d_head);
    m.v_rows = frame.template take<T>(kTileK * a.d_v);
    m.v_finite = frame.template take<T>(kTileK * a.d_v);
    return m;
  }

  FmaProducts(const FlashForwardArgs& args, const Memory& memory) : a_(args), memory_(memory) {}

  void pack_queries(size_t t0, size_t n_lanes, T* rows) {
    HWY_NAMESPACE::pack_queries<NV>(a_.q, a_.dtype, a_.terms.scale, t0, n_lanes, a_.d_head, rows,
                                    memory_.qt);
  }

  void start_tile(const TilePlace& at) {
    n_ = at.n;
    k_ = rows_of(a_.k, a_.dtype, at.j0, at.n, a_.d_head, memory_.k_rows);
    v_ = rows_of(a_.v, a_.dtype, at.j0, at.n, a_.d_v, memory_.v_rows);
  }

  template <int W>
  void score(size_t j, size_t n, size_t lane, T* s, T* tile_max) {
    score_tile<W>(memory_.qt + lane,
                  {k_.data + static_cast<std::ptrdiff_t>(j) * k_.stride, k_.stride}, n, a_.d_head,
                  kLanes, s, tile_max);
  }

  void add_values(const T* p, const KeyRun* runs, size_t n_runs, const MaskTile<NV, T>& mask,
                  const Update<T>& update, T* o) {
    if (!mask.any_hidden || all_finite(v_, n_, a_.d_v)) {
      value_tile<NV>(p, v_, runs, n_runs, a_.d_v, update, o);
      return;
    }
    const Rows<T> finite = without_special_values(v_, n_, a_.d_v, memory_.v_finite);
    value_tile<NV>(p, finite, runs, n_runs, a_.d_v, update, o);
    add_special_values<NV>(p, v_, n_, a_.d_v, mask.hidden, o);
  }

 private:
  const FlashForwardArgs& a_;
  const Memory& memory_;
  Rows<T> k_, v_;  // of the tile
  size_t n_ = 0;   // its keys
};

template <int NV>
using F32Products = FmaProducts<NV, float>;
template <int NV>
using F64Products = FmaProducts<NV, double>;

template <template <int> class Products>
size_t scratch_on_target(const FlashForwardArgs& a) {
  using T = typename Products<kWidestNV>::T;
  if (!suits_few_keys<T>(a)) return scratch_of_blocks<Products>(a);
  runtime::ScratchSize size;
  take_few_keys_memory<T>(a, size);
  return size.bytes();
}

template <template <int> class Products>
void run_on_target(const FlashForwardArgs& a) {
  using T = typename Products<kWidestNV>::T;
  if (!suits_few_keys<T>(a) || !has_plain_values<T>(a)) {
    run_blocks<Products>(a);
    return;
  }
  runtime::ScratchFrame frame;
  run_few_keys<T>(a, take_few_keys_memory<T>(a, frame));
}

size_t flash_forward_scratch_on_target(const FlashForwardArgs& a) {
  return a.dtype == DType::f64 ? scratch_on_target<F64Products>(a)
                               : scratch_on_target<F32Products>(a);
}

void flash_forward_on_target(const FlashForwardArgs& a) {
  if (a.dtype == DType::f64)
    run_on_target<F64Products>(a);
  else
    run_on_target<F32Products>(a);
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(flash_forward_on_target);
HWY_EXPORT(flash_forward_scratch_on_target);

// One block on AVX-512, a few elsewhere: small enough to share out, large enough for a task.
std::size_t flash_forward_block(DType) { return 64; }

std::size_t flash_forward_scratch(const FlashForwardArgs& args) {
  return HWY_DYNAMIC_DISPATCH(flash_forward_scratch_on_target)(args);
}

void flash_forward(const FlashForwardArgs& args) {
  if (args.n_q != 0) HWY_DYNAMIC_DISPATCH(flash_forward_on_target)(args);
}

}  // namespace headwise::kernels
#endif
