// C[M, N] = A[M, K] W[N, K]^T + bias on AMX, for one block of rows and one range of W's panels.
// 32 x 32 sums at a time: a panel stays in cache while the block's rows pass, 32 at a time. Each
// element of C is a chain over pairs of k that AMX adds to f32, rounded once to C's dtype, the same
// for any cut. Subnormal numbers count as 0. Bound by tile loads from L2 (two thirds of AMX's
// peak); below some 16 rows by reading W.
#include "kernels/bf16/amx_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bf16/amx_forward.h"
#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16/amx_matmul.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/bf16/amx_tiles-inl.h"
#include "kernels/bf16/pairs-inl.h"
#include "kernels/convert-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16,amx-tile,amx-bf16")
namespace headwise::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kStripRows = 2 * kTileRows, kPanelColumns = 2 * kTileRows;
constexpr size_t kPanelRowBytes = kPanelColumns * 4;  // of pairs
static_assert(kPanelColumns == PackedWeights::kPanelBytes / sizeof(float));

const std::uint16_t* row_of_a(const MatmulArgs& args, size_t m) {
  return static_cast<const std::uint16_t*>(args.a) + args.a_rows.offset(m);
}

// Rows of A as tiles need them: whole ones of 16 rows and 32 elements.
Rows<std::uint16_t> rows_of_a(const MatmulArgs& args, const MatmulBlock& block,
                              runtime::ScratchFrame& scratch) {
  const size_t K = args.w->K(), width = args.w->padded_K(), m1 = block.m0 + block.rows;
  const std::ptrdiff_t step =
      block.rows > 1 ? args.a_rows.offset(block.m0 + 1) - args.a_rows.offset(block.m0) : 0;
  bool in_place = args.a_stride_k == 1 && K == width && block.rows % kTileRows == 0;
  // Rows 2 KiB apart share one set of L1 in 32.
  in_place = in_place && step % 1024 != 0;
  for (size_t m = block.m0; in_place && m + 1 < m1; ++m)
    in_place = args.a_rows.offset(m + 1) - args.a_rows.offset(m) == step;
  if (in_place) return {row_of_a(args, block.m0), step};
  const size_t rows = hwy::RoundUpTo(block.rows, kTileRows), ld = width + kTileElements;
  auto* copy = scratch.take<std::uint16_t>(rows * ld);
  for (size_t m = 0; m < block.rows; ++m)
    copy_row(row_of_a(args, block.m0 + m), args.a_stride_k, K, width, copy + m * ld);
  std::fill(copy + block.rows * ld, copy + rows * ld, std::uint16_t{0});
  return {copy, static_cast<std::ptrdiff_t>(ld)};
}

// Sums of some rows with one panel, in `sums` [kStripRows][kPanelColumns].
template <int kRowTiles>
void multiply_strip(Rows<std::uint16_t> a, const std::byte* panel, size_t K, float* sums) {
  using Sums = TileSums<kRowTiles, 2>;
  const size_t row_bytes = static_cast<size_t>(a.stride) * sizeof(std::uint16_t);
  Sums::zero();
  for (size_t k = 0; k < K; k += kTileElements, panel += kTileRows * kPanelRowBytes)
    Sums::add({a.data + k, row_bytes}, {panel, kPanelRowBytes});
  Sums::store({sums, kPanelColumns * sizeof(float)});
}

// sums + bias to n columns of a row of C.
void write_row(const float* sums, const float* bias, size_t n, const MatmulArgs& args, void* c) {
  const __m512 low = _mm512_add_ps(_mm512_load_ps(sums), _mm512_load_ps(bias));
  const __m512 high =
      _mm512_add_ps(_mm512_load_ps(sums + kTileRows), _mm512_load_ps(bias + kTileRows));
  if (args.c_stride_n == 1 && args.c_dtype == DType::bf16) {
    const auto bits = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_mask_storeu_epi16(c, static_cast<__mmask32>((std::uint64_t{1} << n) - 1), bits);
    return;
  }
  alignas(64) float row[kPanelColumns];
  _mm512_store_ps(row, low);
  _mm512_store_ps(row + kTileRows, high);
  narrow_row(row, n, c, args.c_dtype, args.c_stride_n);
}

void multiply_on_target(const MatmulArgs& args, const MatmulBlock& block) {
  runtime::ScratchFrame scratch;
  const PackedWeights& w = *args.w;
  const Rows<std::uint16_t> a = rows_of_a(args, block, scratch);
  auto* sums = scratch.take<float>(kStripRows * kPanelColumns);
  const TileSession session;
  for (size_t p = block.panel0; p < block.panel0 + block.panels; ++p) {
    const size_t n0 = p * kPanelColumns, n = std::min(kPanelColumns, w.N() - n0);
    const auto* bias = reinterpret_cast<const float*>(w.bias(p));
    for (size_t m = 0; m < block.rows; m += kStripRows) {
      const size_t rows = std::min(kStripRows, block.rows - m);
      const Rows<std::uint16_t> strip{a.data + static_cast<std::ptrdiff_t>(m) * a.stride, a.stride};
      if (rows > kTileRows)
        multiply_strip<2>(strip, w.panel(p), w.padded_K(), sums);
      else
        multiply_strip<1>(strip, w.panel(p), w.padded_K(), sums);
      for (size_t r = 0; r < rows; ++r)
        write_row(sums + r * kPanelColumns, bias, n, args,
                  static_cast<std::byte*>(args.c) +
                      (args.c_rows.offset(block.m0 + m + r) +
                       static_cast<std::ptrdiff_t>(n0) * args.c_stride_n) *
                          static_cast<std::ptrdiff_t>(size_of(args.c_dtype)));
    }
  }
}

}  // namespace
}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#else
HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace {

void multiply_on_target(const MatmulArgs&, const MatmulBlock&) {}

}  // namespace
}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(multiply_on_target);

bool is_amx_product(const MatmulArgs& args) {
  return args.a_dtype == DType::bf16 && args.w->stored() == DType::bf16 && bf16_amx_available();
}

void amx_matmul_block(const MatmulArgs& args, const MatmulBlock& block) {
  HWY_DYNAMIC_DISPATCH(multiply_on_target)(args, block);
}

}  // namespace headwise::kernels
#endif
