// Working memory of one thread, kept between calls, so that a second call allocates nothing.
#pragma once

#include <cstddef>
#include <type_traits>

#include "headwise/buffer.h"

namespace headwise::runtime {

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
    return static_cast<T*>(take_bytes(n, sizeof(T)));
  }

 private:
  void* take_bytes(std::size_t n, std::size_t element_size);  // throws std::bad_alloc

  std::size_t block_;  // where the frame began
  std::size_t used_;
  std::size_t held_;
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
