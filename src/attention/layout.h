// Where the elements of one tensor of a call lie, seen from (batch index, head): what broadcasting,
// missing dims and any strides come down to.
#pragma once

#include <cstddef>

#include "headwise/tensor.h"

namespace headwise::attention {

// Strides in elements; 0 where the tensor is broadcast or has no such dim.
struct Layout {
  Strides batch;  // one for each dim of Problem::batch
  std::ptrdiff_t h = 0;
  std::ptrdiff_t t = 0;  // query or key, the rows
  std::ptrdiff_t i = 0;  // feature or key, within a row
};

struct Input {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Layout at;
};

struct Output {
  void* data = nullptr;  // null: not wanted
  DType dtype = DType::f32;
  Layout at;
};

// Which dims of a tensor are what, counted from the last; kNoAxis: it has none.
struct Axes {
  std::size_t h, t, i;
  std::size_t n_inner;  // how many dims follow the batch dims
};
inline constexpr std::size_t kNoAxis = kMaxRank;
inline constexpr Axes kMatrixPerHead{2, 1, 0, 3};         // [..., heads, rows, columns]
inline constexpr Axes kRowsPerHead{1, 0, kNoAxis, 2};     // [..., heads, rows]
inline constexpr Axes kMatrixPerBatch{kNoAxis, 1, 0, 2};  // [..., rows, columns]

// Strides by role, 0 for dims that are missing or of size 1 and in an empty tensor. `full` is o's
// shape or the scores': dims of size 1 before its last three have no entry in Layout::batch.
Layout broadcast_layout(const Shape& shape, const Strides& strides, const Axes& axes,
                        const Shape& full);

// The position in each batch dim of flat index b.
inline Shape batch_position(const Shape& batch, std::size_t b) {
  Shape position(batch);
  for (std::size_t n = batch.size(); n-- > 0; b /= batch[n]) position[n] = b % batch[n];
  return position;
}

inline std::ptrdiff_t offset_of(const Layout& at, const Shape& position, std::size_t h) {
  std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(h) * at.h;
  for (std::size_t n = 0; n < position.size(); ++n)
    offset += static_cast<std::ptrdiff_t>(position[n]) * at.batch[n];
  return offset;
}

inline const void* element(const void* data, DType dtype, std::ptrdiff_t offset) {
  return static_cast<const std::byte*>(data) + offset * static_cast<std::ptrdiff_t>(size_of(dtype));
}
inline void* element(void* data, DType dtype, std::ptrdiff_t offset) {
  return static_cast<std::byte*>(data) + offset * static_cast<std::ptrdiff_t>(size_of(dtype));
}

}  // namespace headwise::attention
