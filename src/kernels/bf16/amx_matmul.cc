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
constexpr size_t kStepBytes = kStripRows * kTileElements * sizeof(std::uint16_t);
static_assert(kPanelColumns == PackedWeights::kPanelBytes / sizeof(float));

const std::uint16_t* row_of_a(const MatmulArgs& args, size_t m) {
  return static_cast<const std::uint16_t*>(args.a) + args.a_rows.offset(m);
}

// The rows of a block as tiles, [strip][K / 32][kStripRows][32], with zeros around them: rows in
// place are too far apart to be fetched ahead, and this is read once for each panel.
const std::uint16_t* pack_rows(const MatmulArgs& args, const MatmulBlock& block,
                               runtime::ScratchFrame& scratch) {
  const size_t K = args.w->K(), width = args.w->padded_K();
  const size_t rows = hwy::RoundUpTo(block.rows, kStripRows);
  auto* const tiles = scratch.take<std::uint16_t>(rows * width);
  if (K == 0) return tiles;
  if (rows != block.rows) {
    const size_t last = rows - kStripRows;
    std::fill(tiles + last * width, tiles + rows * width, std::uint16_t{0});
  }
  auto* spread = scratch.take<std::uint16_t>(width);
  for (size_t m = 0; m < block.rows; ++m) {
    const std::uint16_t* row = row_of_a(args, block.m0 + m);
    if (args.a_stride_k != 1) {
      copy_row(row, args.a_stride_k, K, width, spread);
      row = spread;
    }
    std::uint16_t* to =
        tiles + m / kStripRows * kStripRows * width + m % kStripRows * kTileElements;
    for (size_t k = 0; k < K; k += kTileElements, to += kStripRows * kTileElements) {
      const size_t n = std::min(K - k, kTileElements);
      const auto mask = static_cast<__mmask32>((std::uint64_t{1} << n) - 1);
      _mm512_store_si512(to, _mm512_maskz_loadu_epi16(mask, row + k));
    }
  }
  return tiles;
}

// Sums of a strip with one panel, in `sums` [kStripRows][kPanelColumns].
template <int kRowTiles>
void multiply_strip(const std::uint16_t* strip, const std::byte* panel, size_t K, float* sums) {
  using Sums = TileSums<kRowTiles, 2>;
  Sums::zero();
  for (size_t k = 0; k < K; k += kTileElements, panel += kTileRows * kPanelRowBytes) {
    const std::uint16_t* tiles = strip + k * kStripRows;
    // The rows come from L2 for every panel: 5 to 10 % less time when they are asked for two steps
    // ahead. Past the last strip this asks for memory that nobody needs.
    const auto* ahead = reinterpret_cast<const char*>(tiles) + 2 * kStepBytes;
    HWY_UNROLL(32)
    for (size_t line = 0; line < kStepBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
    Sums::add({tiles, kTileElements * sizeof(std::uint16_t)}, {panel, kPanelRowBytes});
  }
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
  const std::uint16_t* a = pack_rows(args, block, scratch);
  auto* sums = scratch.take<float>(kStripRows * kPanelColumns);
  auto* c_rows = scratch.take<std::ptrdiff_t>(block.rows);  // an offset costs a division
  for (size_t m = 0; m < block.rows; ++m) c_rows[m] = args.c_rows.offset(block.m0 + m);
  const TileSession session;
  for (size_t p = block.panel0; p < block.panel0 + block.panels; ++p) {
    const size_t n0 = p * kPanelColumns, n = std::min(kPanelColumns, w.N() - n0);
    const auto* bias = reinterpret_cast<const float*>(w.bias(p));
    for (size_t m = 0; m < block.rows; m += kStripRows) {
      const size_t rows = std::min(kStripRows, block.rows - m);
      const std::uint16_t* strip = a + m * w.padded_K();
      if (rows > kTileRows)
        multiply_strip<2>(strip, w.panel(p), w.padded_K(), sums);
      else
        multiply_strip<1>(strip, w.panel(p), w.padded_K(), sums);
      for (size_t r = 0; r < rows; ++r)
        write_row(sums + r * kPanelColumns, bias, n, args,
                  static_cast<std::byte*>(args.c) +
                      (c_rows[m + r] + static_cast<std::ptrdiff_t>(n0) * args.c_stride_n) *
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
