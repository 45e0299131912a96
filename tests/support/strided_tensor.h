// Tensors for tests: their own memory, any strides, and NaN (true, for booleans) in every byte that
// is not an element, so that a read or write beside the elements shows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "headwise/tensor.h"
#include "support/reference.h"

namespace headwise::test {

inline void store(void* data, DType dtype, std::ptrdiff_t index, double value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::f64:
      static_cast<double*>(data)[index] = value;
      return;
    case DType::bf16:
      static_cast<bfloat16*>(data)[index] = bfloat16(static_cast<float>(value));
      return;
    case DType::f16:
      static_cast<float16*>(data)[index] = float16(static_cast<float>(value));
      return;
    default:
      static_cast<std::uint8_t*>(data)[index] = value != 0;
  }
}

inline std::ptrdiff_t offset_of(const ConstTensorView& view, const Shape& index) {
  std::ptrdiff_t offset = 0;
  for (std::size_t n = 0; n < index.size(); ++n)
    offset += static_cast<std::ptrdiff_t>(index[n]) * view.strides[n];
  return offset;
}

inline double get(const ConstTensorView& view, const Shape& index) {
  return element(view.data, view.dtype, offset_of(view, index));
}

// f(index) for every index, in row-major order.
template <typename F>
void for_each_index(const Shape& shape, F&& f) {
  Shape index(shape);
  for (std::size_t& i : index) i = 0;
  const std::size_t n = element_count(shape);
  for (std::size_t count = 0; count < n; ++count) {
    f(index);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

enum class Memory {
  contiguous,
  heads_inside,  // (B, T, H, D) seen as (B, H, T, D)
  gaps,          // rows longer than their elements
  every_second,  // last stride 2
  columns,       // the last two dims change places
  backwards,     // negative strides
  expanded,      // every index of the first dim is one place: not for outputs
};
inline constexpr Memory kWritable[] = {Memory::contiguous, Memory::heads_inside,
                                       Memory::gaps,       Memory::every_second,
                                       Memory::columns,    Memory::backwards};

inline Strides strides_in(Memory memory, const Shape& shape) {
  Shape order;  // of dims in memory, outermost first
  for (std::size_t n = 0; n < shape.size(); ++n) order.push_back(n);
  const std::size_t rank = shape.size();
  if (memory == Memory::heads_inside && rank >= 3) std::swap(order[rank - 3], order[rank - 2]);
  if (memory == Memory::columns && rank >= 2) std::swap(order[rank - 2], order[rank - 1]);
  Strides strides(shape.begin(), shape.end());
  std::ptrdiff_t step = memory == Memory::every_second ? 2 : 1;
  for (std::size_t n = rank; n-- > 0;) {
    strides[order[n]] = memory == Memory::backwards ? -step : step;
    step *= static_cast<std::ptrdiff_t>(std::max<std::size_t>(shape[order[n]], 1));
    if (memory == Memory::gaps && n + 1 == rank) step += 3;
  }
  if (memory == Memory::expanded && rank > 0) strides[0] = 0;
  return strides;
}

class StridedTensor {
 public:
  StridedTensor() = default;
  StridedTensor(DType dtype, Shape shape, Memory memory = Memory::contiguous)
      : StridedTensor(dtype, shape, strides_in(memory, shape)) {}
  StridedTensor(DType dtype, Shape shape, Strides strides)
      : dtype_(dtype), shape_(shape), strides_(strides) {
    std::ptrdiff_t low = 0, high = 0;
    for (std::size_t n = 0; n < shape.size(); ++n) {
      const std::ptrdiff_t extent =
          shape[n] == 0 ? 0 : static_cast<std::ptrdiff_t>(shape[n] - 1) * strides[n];
      (extent < 0 ? low : high) += extent;
    }
    first_ = kCanaries - low;
    memory_.assign(static_cast<std::size_t>(high - low + 1 + 2 * kCanaries) * size_of(dtype),
                   std::byte{0xFF});
  }

  TensorView view() { return {data(memory_), dtype_, shape_, strides_}; }
  ConstTensorView view() const {
    return {data(const_cast<std::vector<std::byte>&>(memory_)), dtype_, shape_, strides_};
  }
  operator ConstTensorView() const { return view(); }
  const Shape& shape() const { return shape_; }
  double operator()(const Shape& index) const { return get(view(), index); }
  void set(const Shape& index, double value) {
    store(view().data, dtype_, offset_of(view(), index), value);
  }
  template <typename F>
  StridedTensor& fill(F&& value) {
    for_each_index(shape_, [&](const Shape& index) { set(index, value(index)); });
    return *this;
  }
  StridedTensor& fill_normal(std::mt19937& random, double deviation = 1.0) {
    std::normal_distribution<double> normal(0.0, deviation);
    return fill([&](const Shape&) { return normal(random); });
  }
  StridedTensor& fill_flags(std::mt19937& random, double share_true) {
    std::bernoulli_distribution flag(share_true);
    return fill([&](const Shape&) { return flag(random) ? 1.0 : 0.0; });
  }
  // Every byte outside the elements is as it was made.
  bool surroundings_untouched() const {
    std::vector<std::byte> rest = memory_;
    for_each_index(shape_, [&](const Shape& index) {
      const auto at = static_cast<std::size_t>(first_ + offset_of(view(), index));
      std::memset(rest.data() + at * size_of(dtype_), 0xFF, size_of(dtype_));
    });
    return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0xFF}; });
  }
  // The elements in row-major order, whatever the strides: what bit comparisons compare.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    const std::size_t width = size_of(dtype_);
    for_each_index(shape_, [&](const Shape& index) {
      const auto at = static_cast<std::size_t>(first_ + offset_of(view(), index)) * width;
      for (std::size_t n = 0; n < width; ++n) all.push_back(memory_[at + n]);
    });
    return all;
  }

 private:
  static constexpr std::ptrdiff_t kCanaries = 64;  // at either end: a vector register and more
  void* data(std::vector<std::byte>& memory) const {
    return memory.empty() ? nullptr
                          : memory.data() + first_ * static_cast<std::ptrdiff_t>(size_of(dtype_));
  }

  DType dtype_ = DType::f32;
  Shape shape_;
  Strides strides_;
  std::ptrdiff_t first_ = 0;
  std::vector<std::byte> memory_;
};

}  // namespace headwise::test
