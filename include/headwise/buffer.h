// Owned memory: aligned for SIMD, not initialised, freed with its owner.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "headwise/export.h"

namespace headwise {

class HEADWISE_API Buffer {
 public:
  static constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 vector

  Buffer() = default;
  explicit Buffer(std::size_t bytes);  // throws std::bad_alloc
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace headwise
