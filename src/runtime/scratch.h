// Working memory of one thread, kept between calls, so that a second call allocates nothing.
#pragma once

#include <cstddef>
#include <type_traits>

#include "headwise/buffer.h"

namespace headwise::runtime {

struct ScratchArena;  // the blocks of a thread

// Where a thread's next piece comes from.
struct ScratchTop {
  std::byte *next = nullptr, *end = nullptr;  // what is left of the block being filled
  std::size_t block = 0;                      // its number
  std::size_t held = 0;                       // bytes handed out
};

// Memory taken through a frame is valid until the frame ends; frames of one thread nest.
//   ScratchFrame frame;
//   float* s = frame.take<float>(n);   // 64-byte aligned, not initialised
class ScratchFrame {
 public:
  ScratchFrame();
  ~ScratchFrame();
  ScratchFrame(const ScratchFrame&) = delete;
  ScratchFrame& operator=(const ScratchFrame&) = delete;

  template <typename T>
  T* take(std::size_t n) {
    static_assert(std::is_trivially_destructible_v<T>);
    // Blocks are whole lines: where n elements fit, they do so rounded up.
    if (n > static_cast<std::size_t>(top_.end - top_.next) / sizeof(T))
      open_block(n, sizeof(T));  // throws std::bad_alloc
    const std::size_t bytes = (n * sizeof(T) + Buffer::kAlignment - 1) & ~(Buffer::kAlignment - 1);
    T* p = reinterpret_cast<T*>(top_.next);
    top_.next += bytes;
    top_.held += bytes;
    return p;
  }

 private:
  void open_block(std::size_t n, std::size_t element_size);

  ScratchArena& arena_;
  ScratchTop& top_;         // the arena's
  const ScratchTop begin_;  // where the frame began
};

// Adds up what a frame would hand out for the same calls; its pointers are null.
class ScratchSize {
 public:
  template <typename T>
  T* take(std::size_t n) {
    bytes_ += (n * sizeof(T) + Buffer::kAlignment - 1) & ~(Buffer::kAlignment - 1);
    return nullptr;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

// The most bytes that frames of this thread have held at once since it was last reset. Tests
// compare it with what a plan says.
std::size_t scratch_peak();
void reset_scratch_peak();

}  // namespace headwise::runtime
