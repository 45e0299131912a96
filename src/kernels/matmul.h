// Matrix products with weights that were packed once: see matmul.cc.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "headwise/buffer.h"
#include "headwise/dtype.h"
#include "headwise/tensor.h"

namespace headwise::kernels {

// W [N, K] and a bias [N] of C = A W^T + bias, in the kernel's order and arithmetic.
class PackedWeights {
 public:
  // Bytes of arithmetic in a row of a panel: two AVX-512 vectors of columns of C, on every
  // instruction set, so that the set may change after packing.
  static constexpr std::size_t kPanelBytes = 128;

  PackedWeights() = default;
  // Any floating dtypes and strides. bf16 stays bf16 in memory, half the bytes of f32, and is
  // widened by the kernel; f16 is widened here. A bias without data is zero.
  PackedWeights(const ConstTensorView& w, const ConstTensorView& bias);
  // The table of `other`, not copied, with another bias.
  PackedWeights(const PackedWeights& other, const ConstTensorView& bias);

  DType dtype() const { return dtype_; }    // of the arithmetic: f32 or f64
  DType stored() const { return stored_; }  // of the panels: dtype() or bf16
  std::size_t N() const { return N_; }
  std::size_t K() const { return K_; }
  std::size_t panel_columns() const { return kPanelBytes / size_of(dtype_); }
  std::size_t n_panels() const { return (N_ + panel_columns() - 1) / panel_columns(); }
  std::size_t panel_bytes() const { return padded_K() * panel_columns() * size_of(stored_); }
  // Rows of a panel: those of bf16 come in pairs, and in whole tiles of AMX.
  std::size_t padded_K() const { return stored_ == DType::bf16 ? (K_ + 31) / 32 * 32 : K_; }
  const std::byte* panel(std::size_t i) const { return panels_->data() + i * panel_bytes(); }
  const std::byte* bias(std::size_t i) const { return bias_.data() + i * kPanelBytes; }

 private:
  void set_bias(const ConstTensorView& bias);

  DType dtype_ = DType::f32, stored_ = DType::f32;
  std::size_t N_ = 0, K_ = 0;
  // [n_panels][K][panel_columns], zeros past column N. bf16: [n_panels][padded_K /
  // 2][panel_columns] words, row 2i in the low half and row 2i + 1 in the high one, so that a shift
  // and a mask widen, and as instructions that multiply pairs read them; zeros past row K.
  std::shared_ptr<const Buffer> panels_;
  Buffer bias_;  // [n_panels][panel_columns]
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
  std::ptrdiff_t a_stride_k = 1;  // full speed when 1, or where the rows of A are 1 apart
  DType c_dtype = DType::f32;
  void* c = nullptr;  // [M, N]
  RowLayout c_rows;
  std::ptrdiff_t c_stride_n = 1;  // full speed when 1
  // Elements of a row that may be written, if more than N: whole panels need no copy.
  std::size_t c_columns = 0;
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
