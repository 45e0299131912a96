// Matrix products with weights that were packed once: see matmul.cc.
#pragma once

#include <cstddef>
#include <span>

#include "headwise/buffer.h"
#include "headwise/dtype.h"
#include "headwise/tensor.h"

namespace headwise::kernels {

// W [N, K] and a bias [N] of C = A W^T + bias, in the kernel's order and arithmetic.
class PackedWeights {
 public:
  // Columns of C that lie side by side in a panel: two AVX-512 vectors, on every instruction set,
  // so that the set may change after packing.
  static constexpr std::size_t kPanelBytes = 128;

  PackedWeights() = default;
  // Any floating dtype, the same for both, and any strides; bf16 and f16 are widened to f32. A
  // bias without data is zero.
  PackedWeights(const ConstTensorView& w, const ConstTensorView& bias);

  DType dtype() const { return dtype_; }  // of the arithmetic: f32 or f64
  std::size_t N() const { return N_; }
  std::size_t K() const { return K_; }
  std::size_t panel_columns() const { return kPanelBytes / size_of(dtype_); }
  std::size_t n_panels() const { return (N_ + panel_columns() - 1) / panel_columns(); }
  const std::byte* panel(std::size_t i) const { return panels_.data() + i * K_ * kPanelBytes; }
  const std::byte* bias(std::size_t i) const { return bias_.data() + i * kPanelBytes; }

 private:
  DType dtype_ = DType::f32;
  std::size_t N_ = 0, K_ = 0;
  Buffer panels_;  // [n_panels][K][panel_columns], zeros past column N
  Buffer bias_;    // [n_panels][panel_columns]
};

// Where the rows of a matrix begin: row r at (r / n_inner) * stride_outer + (r % n_inner) *
// stride_inner. Rows of two dims, [B, T] or [T, B], need no copy.
struct RowLayout {
  std::size_t n_inner = 1;
  std::ptrdiff_t stride_outer = 0;
  std::ptrdiff_t stride_inner = 0;

  std::ptrdiff_t offset(std::size_t r) const {
    return static_cast<std::ptrdiff_t>(r / n_inner) * stride_outer +
           static_cast<std::ptrdiff_t>(r % n_inner) * stride_inner;
  }
};

// C = A W^T + bias. C is in the arithmetic's dtype, or rounded to bf16 or f16.
struct MatmulArgs {
  const PackedWeights* w = nullptr;
  DType a_dtype = DType::f32;
  const void* a = nullptr;  // [M, K]
  RowLayout a_rows;
  std::ptrdiff_t a_stride_k = 1;  // full speed when 1
  DType c_dtype = DType::f32;
  void* c = nullptr;  // [M, N], elements of a row side by side
  RowLayout c_rows;
  std::size_t M = 0;
};

// A part of a product: rows [m0, m0 + rows) and whole panels [panel0, panel0 + panels).
struct MatmulBlock {
  std::size_t m0 = 0, rows = 0;
  std::size_t panel0 = 0, panels = 0;
};

// One thread's work. Takes scratch: may throw std::bad_alloc, before it writes.
void matmul_block(const MatmulArgs& args, const MatmulBlock& block);

// All products in one parallel region. How they are cut changes no bit.
void matmul(std::span<const MatmulArgs> products);

}  // namespace headwise::kernels
