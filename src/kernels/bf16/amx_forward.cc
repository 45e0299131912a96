// Forward attention of bf16 for some blocks of queries of one (batch, head), on AMX: the arithmetic
// of amx_block-inl.h.
// AMX takes subnormal numbers for 0 and rounds each sum to nearest even. Its order is fixed, so the
// bits don't depend on threads or batch, but they are not those of other kernels.
// Memory: a leaf's keys are copied, where their rows don't do, and its values transposed once for
// all blocks of a call; a block works in 60 KiB at d 64. Bound by exp and the max, with the
// products behind them.
#include "kernels/bf16/amx_forward.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "kernels/bf16/dot_forward.h"
#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16/amx_forward.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/bf16/amx_block-inl.h"
#include "kernels/bf16/amx_leaf-inl.h"
#include "kernels/bf16/amx_tiles-inl.h"
#include "kernels/flash_block-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16,amx-tile,amx-bf16")
namespace headwise::kernels::HWY_NAMESPACE {
namespace {

bool amx_on_target() { return true; }

constexpr size_t kMostBlocks = kAmxGroup / kBlockLanes<float, kWidestNV> + 1;

// What a group of n_blocks takes.
template <class Frame>
struct GroupMemory {
  GroupMemory(const FlashForwardArgs& a, size_t n_blocks, Frame& frame)
      : workspace(take_workspace<float>(frame)) {
    constexpr size_t kLanes = kBlockLanes<float, kWidestNV>;
    const size_t d_v = padded_values(a.d_v);
    leaf.keys = frame.template take<std::uint16_t>(kLeafK * padded_head(a.d_head));
    leaf.values = frame.template take<float>(kLeafK / 2 * d_v);
    leaf.rows = frame.template take<std::uint16_t>(kTileK * a.d_v);
    leaf.pairs = frame.template take<float>(kTileK / 2 * row_of_pairs(a.d_v));
    float* p = frame.template take<float>(kPendingKeys / 2 * kLanes);
    for (size_t i = 0; i < n_blocks; ++i) {
      blocks[i] = take_block_memory<float>(a, frame, d_v - a.d_v);
      tiles[i] = {frame.template take<float>(padded_head(a.d_head) / 2 * kLanes), p, &leaf};
    }
  }
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  Workspace<float> workspace;
  LeafTiles leaf;
  BlockMemory<float> blocks[kMostBlocks];
  AmxMemory tiles[kMostBlocks];
};

size_t count_blocks(size_t n_q) {
  size_t n = 0;
  for_each_block<float>(0, n_q, [&n](auto, size_t, size_t) { ++n; });
  return n;
}

template <int NV>
using AmxBlock = Block<AmxTile<NV>>;

void run_group(const FlashForwardArgs& a, size_t t0, size_t n_q) {
  runtime::ScratchFrame frame;
  GroupMemory<runtime::ScratchFrame> memory(a, count_blocks(n_q), frame);
  std::array<std::variant<std::monostate, AmxBlock<4>, AmxBlock<2>, AmxBlock<1>>, kMostBlocks>
      blocks;
  size_t n_blocks = 0;
  for_each_block<float>(t0, n_q, [&](auto width, size_t block_t0, size_t n_lanes) {
    blocks[n_blocks]
        .template emplace<AmxBlock<decltype(width)::value>>(
            a, memory.workspace, memory.blocks[n_blocks], memory.tiles[n_blocks], block_t0, n_lanes)
        .start();
    ++n_blocks;
  });
  const auto each_block = [&](auto&& step) {
    for (size_t i = 0; i < n_blocks; ++i)
      std::visit(
          [&](auto& block) {
            if constexpr (!std::is_same_v<decltype(block), std::monostate&>) step(block);
          },
          blocks[i]);
  };
  std::fill_n(memory.leaf.made, kTilesPerLeaf, ~size_t{0});
  for (size_t leaf = 0; leaf * kLeafK < a.T_k; ++leaf)
    each_block([leaf](auto& block) { block.run_leaf(leaf); });
  each_block([](auto& block) { block.finish(); });
}

void amx_forward_on_target(const FlashForwardArgs& a) {
  const TileSession session;
  for (size_t t = 0; t < a.n_q; t += kAmxGroup)
    run_group(a, a.t0 + t, std::min(kAmxGroup, a.n_q - t));
}

size_t amx_scratch_on_target(const FlashForwardArgs& a) {
  runtime::ScratchSize size;
  GroupMemory<runtime::ScratchSize>(a, count_blocks(std::min(a.n_q, kAmxGroup)), size);
  return size.bytes();
}

}  // namespace
}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#else
HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace {

bool amx_on_target() { return false; }
void amx_forward_on_target(const FlashForwardArgs&) {}
size_t amx_scratch_on_target(const FlashForwardArgs&) { return 0; }

}  // namespace
}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE

#if HWY_ARCH_X86 && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headwise::kernels {

HWY_EXPORT(amx_on_target);
HWY_EXPORT(amx_forward_on_target);
HWY_EXPORT(amx_scratch_on_target);

bool amx_on_cpu() {
#if HWY_ARCH_X86 && defined(__linux__)
  static const bool on_cpu = [] {
    if (!bf16_dot_on_cpu()) return false;  // what prepares the tiles has its instructions
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0)
      return false;
    // The kernel saves the tiles of those who have asked for them.
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return on_cpu;
#else
  return false;
#endif
}

bool bf16_amx_available() { return amx_on_cpu() && HWY_DYNAMIC_DISPATCH(amx_on_target)(); }

void bf16_amx_forward(const FlashForwardArgs& args) {
  if (args.n_q != 0) HWY_DYNAMIC_DISPATCH(amx_forward_on_target)(args);
}

std::size_t bf16_amx_scratch(const FlashForwardArgs& args) {
  return HWY_DYNAMIC_DISPATCH(amx_scratch_on_target)(args);
}

}  // namespace headwise::kernels
#endif
