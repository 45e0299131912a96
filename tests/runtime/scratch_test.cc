// Scratch memory: aligned, stable while its frame lives, kept for the next one.
#include "runtime/scratch.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "support/environment.h"

namespace headwise::runtime {
namespace {

TEST(Scratch, PiecesAreAlignedAndDoNotOverlap) {
  ScratchFrame frame;
  std::vector<std::pair<unsigned char*, std::size_t>> pieces;
  for (std::size_t n : {1, 63, 64, 65, 1000, 300000, 0, 5000000, 7}) {
    auto* p = frame.take<unsigned char>(n);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0u);
    if (n > 0) std::memset(p, static_cast<int>(pieces.size() + 1), n);
    pieces.emplace_back(p, n);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i)
    for (std::size_t b = 0; b < pieces[i].second; ++b) ASSERT_EQ(pieces[i].first[b], i + 1);
}

TEST(Scratch, AnInnerFrameGivesItsMemoryBackAndNotMore) {
  ScratchFrame outer;
  int* kept = outer.take<int>(10);
  for (int i = 0; i < 10; ++i) kept[i] = i;
  int* first = nullptr;
  for (int r = 0; r < 3; ++r) {
    ScratchFrame inner;
    int* p = inner.take<int>(1000);
    if (r == 0) first = p;
    EXPECT_EQ(p, first);
    std::memset(p, 0xff, 4000);
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(kept[i], i);
}

std::size_t resident_pages() {
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident;
}

// Takes n bytes and writes them, as a call would.
unsigned char* touch(std::size_t n) {
  ScratchFrame frame;
  unsigned char* p = frame.take<unsigned char>(n);
  std::memset(p, 1, n);
  return p;
}

TEST(Scratch, LargeBlocksStayWhileTheyAreUsedAndAreGivenBackLater) {
  if (test::sanitized()) GTEST_SKIP() << "AddressSanitizer holds freed memory back";
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  const std::size_t before = resident_pages(), half = kLarge >> 13;
  std::thread([&] {  // a thread of its own: its first block is the large one
    const unsigned char* p = touch(kLarge);
    EXPECT_EQ(touch(kLarge), p);
    EXPECT_GT(resident_pages(), before + half);
    for (int n = 0; n < 5; ++n) touch(1000);
    EXPECT_EQ(touch(kLarge), p) << "small calls between large ones";
    {
      ScratchFrame frame;  // holds it for the frames inside
      unsigned char* held = frame.take<unsigned char>(kLarge);
      for (int n = 0; n < 100; ++n) touch(1000);
      held[kLarge - 1] = 1;
    }
    EXPECT_GT(resident_pages(), before + half);
  })
      .join();
  std::thread([&] {
    touch(1000);
    touch(kLarge);
    for (int n = 0; n < 100; ++n) touch(1000);
    EXPECT_LT(resident_pages(), before + half) << "many small calls later";
  }).join();
}

TEST(Scratch, ThePeakIsTheMostThatFramesHeldAtOnce) {
  std::thread([] {
    {
      ScratchFrame frame;
      frame.take<unsigned char>(100);  // two lines
      touch(1000);                     // 16 lines
      touch(10);
      frame.take<double>(1);
      EXPECT_EQ(scratch_peak(), 18u * 64);
    }
    reset_scratch_peak();
    touch(1);
    EXPECT_EQ(scratch_peak(), 64u);
  }).join();
}

TEST(Scratch, OverflowingSizesThrow) {
  ScratchFrame frame;
  EXPECT_THROW(frame.take<double>(std::numeric_limits<std::size_t>::max() / 4), std::bad_alloc);
}

}  // namespace
}  // namespace headwise::runtime
