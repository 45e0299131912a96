#include "runtime/scratch.h"

#include <algorithm>
#include <new>
#include <vector>

#include "core/checked.h"

namespace headwise::runtime {
namespace {

// Blocks never move once handed out; a frame that ends leaves them for the next.
struct Arena {
  std::vector<Buffer> blocks;
  std::size_t block = 0;  // the one being filled
  std::size_t used = 0;   // bytes of it
  std::size_t held = 0;   // bytes of all frames
  std::size_t peak = 0;
};

constexpr std::size_t kFirstBlock = std::size_t{1} << 18;
constexpr std::size_t kKept = std::size_t{1} << 23;  // larger blocks are given back at the end

Arena& arena() {
  thread_local Arena a;
  return a;
}

}  // namespace

ScratchFrame::ScratchFrame() : block_(arena().block), used_(arena().used), held_(arena().held) {}

ScratchFrame::~ScratchFrame() {
  Arena& a = arena();
  a.block = block_;
  a.used = used_;
  a.held = held_;
  if (block_ == 0 && used_ == 0)  // the outermost frame
    std::erase_if(a.blocks, [](const Buffer& block) { return block.size() > kKept; });
}

void* ScratchFrame::take_bytes(std::size_t n, std::size_t element_size) {
  const auto product = core::checked_mul(n, element_size);
  const auto padded = product ? core::checked_add(*product, Buffer::kAlignment - 1) : std::nullopt;
  if (!padded) throw std::bad_alloc();
  const std::size_t bytes = *padded & ~(Buffer::kAlignment - 1);
  Arena& a = arena();
  while (a.block < a.blocks.size() && a.blocks[a.block].size() - a.used < bytes) {
    ++a.block;
    a.used = 0;
  }
  if (a.block == a.blocks.size()) {
    const std::size_t last = a.blocks.empty() ? kFirstBlock / 2 : a.blocks.back().size();
    a.blocks.emplace_back(std::max(bytes, std::min(last * 2, kKept)));
    a.used = 0;
  }
  void* p = a.blocks[a.block].data() + a.used;
  a.used += bytes;
  a.held += bytes;
  a.peak = std::max(a.peak, a.held);
  return p;
}

std::size_t scratch_peak() { return arena().peak; }
void reset_scratch_peak() { arena().peak = arena().held; }

}  // namespace headwise::runtime
