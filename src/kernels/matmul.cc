// C[M, N] = A[M, K] W[N, K]^T + bias for one block of rows and one range of W's panels.
//
// A tile of C, kMaxRows x 2 vectors, stays in registers while K is walked: two loads of the panel
// and one broadcast of A per row feed 2 * kMaxRows multiply-adds. kBlockK rows of a panel (32 KiB)
// stay in L1 for all tiles of the block, A's rows in L2; W is read from memory once per block of
// rows. Every element of C is one chain of fused multiply-adds over ascending k that starts at 0
// (a block of K continues it from C), then the bias: the same bits for every cut, number of lanes
// and thread. Memory bound below about 8 rows.
#include "kernels/matmul.h"

#include <algorithm>
#include <utility>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlockK = 256;
// Accumulators take 2 * kMaxRows registers, the panel two, the broadcast one.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr size_t kMaxRows = 12;  // of 32 registers
#else
constexpr size_t kMaxRows = 6;  // of 16
#endif

template <typename T>
struct Tile {
  const T* a;  // [rows, K]
  ptrdiff_t lda;
  const T* b;  // [K, panel columns], at this tile's first column
  size_t ldb;
  T* c;  // [rows, 2 vectors]
  ptrdiff_t ldc;
  size_t K;
  bool continues;  // the chain goes on from what is in c
  const T* bias;   // two vectors, nullptr before the end of the chain
};

template <class D, class V>
HWY_INLINE void accumulate(D d, const hn::TFromD<D>* a, V b0, V b1, V& c0, V& c1) {
  const V x = hn::Set(d, *a);
  c0 = hn::MulAdd(x, b0, c0);
  c1 = hn::MulAdd(x, b1, c1);
}

template <class D, class V, typename T>
HWY_INLINE void load_row(D d, const Tile<T>& t, size_t row, V& c0, V& c1) {
  if (t.continues) {
    c0 = hn::LoadU(d, t.c + static_cast<ptrdiff_t>(row) * t.ldc);
    c1 = hn::LoadU(d, t.c + static_cast<ptrdiff_t>(row) * t.ldc + hn::Lanes(d));
  } else {
    c0 = hn::Zero(d);
    c1 = hn::Zero(d);
  }
}

template <class D, class V, typename T>
HWY_INLINE void store_row(D d, const Tile<T>& t, size_t row, V c0, V c1) {
  if (t.bias != nullptr) {
    c0 = hn::Add(c0, hn::Load(d, t.bias));
    c1 = hn::Add(c1, hn::Load(d, t.bias + hn::Lanes(d)));
  }
  hn::StoreU(c0, d, t.c + static_cast<ptrdiff_t>(row) * t.ldc);
  hn::StoreU(c1, d, t.c + static_cast<ptrdiff_t>(row) * t.ldc + hn::Lanes(d));
}

// The pack expansions keep every accumulator in a register of its own, whatever the compiler
// thinks of unrolling.
template <class D, typename T, size_t... row>
HWY_INLINE void multiply_tile(D d, const Tile<T>& t, std::index_sequence<row...>) {
  using V = hn::Vec<D>;
  V c0[sizeof...(row)], c1[sizeof...(row)];
  (load_row(d, t, row, c0[row], c1[row]), ...);
  const T* a = t.a;
  const T* b = t.b;
  const ptrdiff_t lda = t.lda;
  for (size_t k = 0; k < t.K; ++k, ++a, b += t.ldb) {
    const V b0 = hn::Load(d, b), b1 = hn::Load(d, b + hn::Lanes(d));
    (accumulate(d, a + static_cast<ptrdiff_t>(row) * lda, b0, b1, c0[row], c1[row]), ...);
  }
  (store_row(d, t, row, c0[row], c1[row]), ...);
}

template <size_t kRows, class D, typename T>
HWY_INLINE void choose_rows(D d, size_t rows, const Tile<T>& t) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      multiply_tile(d, t, std::make_index_sequence<kRows>());
    else
      choose_rows<kRows - 1>(d, rows, t);
  }
}

// `rows` rows of one panel, all of K. Software prefetch of the panel's next block did not help: 3 to
// 25 % slower on Zen 5, whose own prefetchers follow the panels.
template <typename T>
void multiply_panel(const T* a, ptrdiff_t lda, const PackedWeights& w, size_t panel, T* c,
                    ptrdiff_t ldc, size_t rows) {
  const hn::CappedTag<T, PackedWeights::kPanelBytes / (2 * sizeof(T))> d;
  constexpr size_t kColumns = PackedWeights::kPanelBytes / sizeof(T);
  const T* b = reinterpret_cast<const T*>(w.panel(panel));
  const T* bias = reinterpret_cast<const T*>(w.bias(panel));
  const size_t K = w.K();
  size_t k0 = 0;
  do {
    const size_t n_k = std::min(kBlockK, K - k0);
    const bool last = k0 + n_k == K;
    for (size_t n = 0; n < kColumns; n += 2 * hn::Lanes(d)) {
      size_t m = 0;
      for (size_t tiles = (rows + kMaxRows - 1) / kMaxRows; tiles > 0; --tiles) {
        const size_t n_m = (rows - m + tiles - 1) / tiles;  // of equal height, up to one
        const auto row = static_cast<ptrdiff_t>(m);
        choose_rows<kMaxRows>(
            d, n_m,
            Tile<T>{a + row * lda + k0, lda, b + k0 * kColumns + n, kColumns, c + row * ldc + n,
                    ldc, n_k, k0 > 0, last ? bias + n : nullptr});
        m += n_m;
      }
    }
    k0 += n_k;
  } while (k0 < K);
}

bool is_uniform(const RowLayout& rows, size_t M) {
  return rows.n_inner == 1 || M <= rows.n_inner ||
         rows.stride_outer == rows.stride_inner * static_cast<ptrdiff_t>(rows.n_inner);
}

ptrdiff_t row_stride(const RowLayout& rows) {
  return rows.n_inner == 1 ? rows.stride_outer : rows.stride_inner;
}

const std::byte* at(const void* base, ptrdiff_t offset, size_t width) {
  return static_cast<const std::byte*>(base) + offset * static_cast<ptrdiff_t>(width);
}

// Rows 4 KiB apart share their place in L1; more of them than it has ways push one another out.
template <typename T>
bool collides(ptrdiff_t stride, size_t rows) {
  return rows > 4 && stride % static_cast<ptrdiff_t>(4096 / sizeof(T)) == 0;
}

template <typename T>
void multiply_block(const MatmulArgs& args, const MatmulBlock& block) {
  runtime::ScratchFrame scratch;
  const PackedWeights& w = *args.w;
  const size_t K = w.K(), columns = w.panel_columns(), rows = block.rows;
  const size_t a_width = size_of(args.a_dtype), c_width = size_of(args.c_dtype);

  ptrdiff_t lda = row_stride(args.a_rows);
  const T* a = nullptr;
  if (args.a_dtype == w.dtype() && args.a_stride_k == 1 && is_uniform(args.a_rows, args.M) &&
      !collides<T>(lda, rows)) {
    a = reinterpret_cast<const T*>(at(args.a, args.a_rows.offset(block.m0), a_width));
  } else {
    lda = static_cast<ptrdiff_t>(K + PackedWeights::kPanelBytes / sizeof(T));
    T* copy = scratch.take<T>(rows * static_cast<size_t>(lda));
    for (size_t m = 0; m < rows; ++m)
      widen_row<T>(at(args.a, args.a_rows.offset(block.m0 + m), a_width), args.a_dtype,
                   args.a_stride_k, K, copy + m * static_cast<size_t>(lda));
    a = copy;
  }

  const bool direct = args.c_dtype == w.dtype() && is_uniform(args.c_rows, args.M) &&
                      !(K > kBlockK && collides<T>(row_stride(args.c_rows), rows));
  T* tile = scratch.take<T>(rows * columns);
  for (size_t p = block.panel0; p < block.panel0 + block.panels; ++p) {
    const size_t n0 = p * columns, n = std::min(columns, w.N() - n0);
    const auto c_at = [&](size_t m) {
      return const_cast<std::byte*>(
          at(args.c, args.c_rows.offset(block.m0 + m) + static_cast<ptrdiff_t>(n0), c_width));
    };
    if (direct && n == columns) {
      multiply_panel(a, lda, w, p, reinterpret_cast<T*>(c_at(0)), row_stride(args.c_rows), rows);
    } else {
      multiply_panel(a, lda, w, p, tile, static_cast<ptrdiff_t>(columns), rows);
      for (size_t m = 0; m < rows; ++m)
        narrow_row<T>(tile + m * columns, n, c_at(m), args.c_dtype, 1);
    }
  }
}

void matmul_block(const MatmulArgs& args, const MatmulBlock& block) {
  if (args.w->dtype() == DType::f64)
    multiply_block<double>(args, block);
  else
    multiply_block<float>(args, block);
}

}  // namespace
}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(matmul_block);

void matmul_block(const MatmulArgs& args, const MatmulBlock& block) {
  if (block.rows == 0 || block.panels == 0) return;
  HWY_DYNAMIC_DISPATCH(matmul_block)(args, block);
}

}  // namespace headwise::kernels
#endif
