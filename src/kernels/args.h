// Argument structs that src/attention fills and the attention kernels read. Plain data: pointers
// into one (batch, head), sizes, strides in elements. Kernels know nothing of modules, batches or
// files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "headwise/dtype.h"

namespace headwise::kernels {

// A matrix with T rows (queries or keys) and rows of `d` elements. Full speed when stride_i is 1.
struct ConstMatrix {
  const void* data = nullptr;
  std::ptrdiff_t stride_t = 0;  // from one row to the next
  std::ptrdiff_t stride_i = 1;  // from one element of a row to the next
};
struct Matrix {
  void* data = nullptr;
  std::ptrdiff_t stride_t = 0;
  std::ptrdiff_t stride_i = 1;
};

// One mask over (query t, key j). Strides may be 0 (broadcast).
struct MaskMatrix {
  enum class Kind : std::uint8_t { none, keep, ignore, bias };
  Kind kind = Kind::none;
  DType dtype = DType::boolean;  // boolean for keep and ignore; f32, f64, bf16 or f16 for bias
  const void* data = nullptr;
  std::ptrdiff_t stride_t = 0;
  std::ptrdiff_t stride_j = 0;
};

inline constexpr std::ptrdiff_t kNoDiagonal = std::numeric_limits<std::ptrdiff_t>::max();
inline constexpr std::size_t kMaxMasks = 2;

// Which keys a query sees and what is added to its scores: everything but q.k itself.
struct ScoreTerms {
  double scale = 1.0;
  std::ptrdiff_t diagonal = kNoDiagonal;  // key j is visible to query t only if j <= t + diagonal
  MaskMatrix masks[kMaxMasks];            // all must allow; biases are added in this order
  // Diagonal and masks speak of the keys before this one; from it on, every query sees every key
  // and nothing is added (the module's appended columns). Masks have no columns there: don't read.
  std::size_t n_maskable = std::numeric_limits<std::size_t>::max();
};

// Dropout of the weights: weight (t, j) of this head is kept when its Philox draw says so.
struct Dropout {
  double p = 0.0;
  std::uint64_t seed = 0;
  std::uint64_t head = 0;  // b * n_heads + h: part of the counter, so every head has its own draws
};

}  // namespace headwise::kernels
