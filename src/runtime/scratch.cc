#include "runtime/scratch.h"

#include <algorithm>
#include <new>
#include <vector>

#include "core/checked.h"

namespace headwise::runtime {

// Blocks never move once handed out; a frame that ends leaves them for the next.
struct ScratchArena {
  ScratchTop top;
  std::vector<Buffer> blocks;
  std::size_t depth = 0;   // of nested frames
  std::size_t opened = 0;  // blocks that the outermost frame has come to
  std::size_t peak = 0;    // most bytes held
  int n_without = 0;       // outermost frames in a row that came to no large block
};

namespace {

constexpr std::size_t kFirstBlock = std::size_t{1} << 18;
// Larger blocks are given back once so many calls in a row did without them: calls of one size
// allocate nothing, and one large call among small ones does not hold its memory for ever.
constexpr std::size_t kLarge = std::size_t{1} << 23;
constexpr int kPatience = 16;

ScratchArena& arena() {
  thread_local ScratchArena a;
  return a;
}

bool is_large(const Buffer& block) { return block.size() > kLarge; }

void give_large_blocks_back(ScratchArena& a) {
  const auto end = a.blocks.begin() + static_cast<std::ptrdiff_t>(a.opened);
  if (std::any_of(a.blocks.begin(), end, is_large)) {
    a.n_without = 0;
  } else if (++a.n_without >= kPatience) {
    a.n_without = 0;
    std::erase_if(a.blocks, is_large);
  }
  a.opened = 0;
}

}  // namespace

ScratchFrame::ScratchFrame() : arena_(arena()), top_(arena_.top), begin_(top_) { ++arena_.depth; }

ScratchFrame::~ScratchFrame() {
  arena_.peak = std::max(arena_.peak, top_.held);
  top_ = begin_;
  if (--arena_.depth == 0) give_large_blocks_back(arena_);
}

void ScratchFrame::open_block(std::size_t n, std::size_t element_size) {
  const auto product = core::checked_mul(n, element_size);
  const auto padded = product ? core::checked_add(*product, Buffer::kAlignment - 1) : std::nullopt;
  if (!padded) throw std::bad_alloc();
  const std::size_t bytes = *padded & ~(Buffer::kAlignment - 1);
  std::vector<Buffer>& blocks = arena_.blocks;
  std::size_t block = top_.next == nullptr ? 0 : top_.block + 1;  // null: none is open yet
  while (block < blocks.size() && blocks[block].size() < bytes) ++block;
  if (block == blocks.size()) {
    const std::size_t last = blocks.empty() ? kFirstBlock / 2 : blocks.back().size();
    blocks.emplace_back(std::max(bytes, std::min(last * 2, kLarge)));
  }
  arena_.opened = std::max(arena_.opened, block + 1);
  top_.next = blocks[block].data();
  top_.end = top_.next + blocks[block].size();
  top_.block = block;
}

std::size_t scratch_peak() {
  const ScratchArena& a = arena();
  return std::max(a.peak, a.top.held);
}
void reset_scratch_peak() { arena().peak = 0; }

}  // namespace headwise::runtime
