// Working memory of one thread, kept between calls, so that a second call allocates nothing.
#pragma once

#include <cstddef>
#include <type_traits>

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
};

}  // namespace headwise::runtime
