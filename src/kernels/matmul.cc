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
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/bf16/amx_matmul.h"
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

// Columns between the two vectors of a tile, whatever their width.
template <typename T>
constexpr size_t kHalf = PackedWeights::kPanelBytes / (2 * sizeof(T));
template <typename T>
constexpr size_t kColumns = 2 * kHalf<T>;  // of a panel

// What a panel is made of: elements, or words of two rows of bf16.
using BfloatWord = std::uint32_t;
template <typename W>
constexpr size_t kRowsAWord = std::is_same_v<W, BfloatWord> ? 2 : 1;
template <typename W>
constexpr size_t kRowWords = PackedWeights::kPanelBytes / sizeof(W);

template <typename T, typename W>
struct Tile {
  const T* a;  // [rows, K]
  ptrdiff_t lda, a_step;
  const W* b;  // [K, kRowWords], at this tile's first column; the next panel's at b + b_step
  size_t b_step;
  T* c;  // [rows, kColumns] of each panel, panels side by side
  ptrdiff_t ldc;
  size_t K;
  bool continues;  // the chain goes on from what is in c
  const T* bias;   // like a row of c, nullptr before the end of the chain
};

template <size_t kRow, class D>
HWY_INLINE hn::Vec<D> load_column(D d, const hn::TFromD<D>* b) {
  return hn::Load(d, b);
}

template <size_t kRow, class D>
HWY_INLINE hn::Vec<D> load_column(D d, const BfloatWord* b) {
  const hn::RebindToUnsigned<D> du;
  const auto both = hn::Load(du, b);
  return hn::BitCast(d,
                     kRow == 0 ? hn::ShiftLeft<16>(both) : hn::And(both, hn::Set(du, 0xffff0000u)));
}

template <size_t kRow, class D, typename W, class V = hn::Vec<D>>
HWY_INLINE void load_columns(D d, const W* b, V& b0, V& b1) {
  b0 = load_column<kRow>(d, b);
  b1 = load_column<kRow>(d, b + kHalf<hn::TFromD<D>>);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE void accumulate(D d, const hn::TFromD<D>* a, V b0, V b1, V& c0, V& c1) {
  const V x = hn::Set(d, *a);
  c0 = hn::MulAdd(x, b0, c0);
  c1 = hn::MulAdd(x, b1, c1);
}

template <class D, typename T, class V = hn::Vec<D>>
HWY_INLINE void load_row(D d, bool continues, const T* c, V& c0, V& c1) {
  c0 = continues ? hn::LoadU(d, c) : hn::Zero(d);
  c1 = continues ? hn::LoadU(d, c + kHalf<T>) : hn::Zero(d);
}

template <class D, typename T, class V = hn::Vec<D>>
HWY_INLINE void store_row(D d, const T* bias, T* c, V c0, V c1) {
  if (bias != nullptr) {
    c0 = hn::Add(c0, hn::Load(d, bias));
    c1 = hn::Add(c1, hn::Load(d, bias + kHalf<T>));
  }
  hn::StoreU(c0, d, c);
  hn::StoreU(c1, d, c + kHalf<T>);
}

// The pack expansions keep every accumulator in a register of its own, whatever the compiler
// thinks of unrolling. `i` counts the rows of all panels.
template <size_t kRows, class D, typename T, typename W, size_t... panel, size_t... i>
HWY_INLINE void multiply_tile(D d, const Tile<T, W>& t, std::index_sequence<panel...>,
                              std::index_sequence<i...>) {
  using V = hn::Vec<D>;
  V c0[sizeof...(i)], c1[sizeof...(i)];
  const auto c_at = [&t](size_t n) {
    return t.c + static_cast<ptrdiff_t>(n % kRows) * t.ldc + n / kRows * kColumns<T>;
  };
  (load_row(d, t.continues, c_at(i), c0[i], c1[i]), ...);
  const T* a = t.a;
  const W* b = t.b;
  const ptrdiff_t lda = t.lda, a_step = t.a_step;
  const size_t b_step = t.b_step;
  const auto add_row = [&](auto row) HWY_ATTR {
    V b0[sizeof...(panel)], b1[sizeof...(panel)];
    (load_columns<decltype(row)::value>(d, b + panel * b_step, b0[panel], b1[panel]), ...);
    (accumulate(d, a + static_cast<ptrdiff_t>(i % kRows) * lda, b0[i / kRows], b1[i / kRows], c0[i],
                c1[i]),
     ...);
    a += a_step;
  };
  for (size_t k = 0; k < t.K / kRowsAWord<W>; ++k, b += kRowWords<W>) {
    add_row(std::integral_constant<size_t, 0>());
    if constexpr (kRowsAWord<W> == 2) add_row(std::integral_constant<size_t, 1>());
  }
  if (t.K % kRowsAWord<W> != 0) add_row(std::integral_constant<size_t, 0>());
  (store_row(d, t.bias == nullptr ? nullptr : t.bias + i / kRows * kColumns<T>, c_at(i), c0[i],
             c1[i]),
   ...);
}

template <size_t kPanels, size_t kRows, class D, typename T, typename W>
HWY_INLINE void choose_rows(D d, size_t rows, const Tile<T, W>& t) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      multiply_tile<kRows>(d, t, std::make_index_sequence<kPanels>(),
                           std::make_index_sequence<kPanels * kRows>());
    else
      choose_rows<kPanels, kRows - 1>(d, rows, t);
  }
}

// How many panels are walked side by side: with few rows one panel has too few chains to hide the
// latency of their multiply-adds.
constexpr size_t kMaxPanels = 4;
size_t panels_at_once(size_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

template <typename T, typename W>
HWY_INLINE void choose_tile(size_t panels, size_t rows, const Tile<T, W>& t) {
  const hn::CappedTag<T, kHalf<T>> d;
  if (panels == 4)
    choose_rows<4, 1>(d, rows, t);
  else if (panels == 2)
    choose_rows<2, 3>(d, rows, t);
  else
    choose_rows<1, kMaxRows>(d, rows, t);
}

// Rows of A as the kernel reads them. Those of a transposed A are 1 apart: what the kernel takes
// for one k lies side by side.
template <typename T>
struct RowsOfA {
  const T* data;
  ptrdiff_t stride, step;  // from row to row, from k to k
};

// Some rows of A and where their part of C goes.
template <typename T>
struct Strip {
  size_t rows;
  RowsOfA<T> a;
  T* c;
  ptrdiff_t ldc;
};

// The strip by some panels, all of K; the first `columns` of C are wanted. Software prefetch of the
// panel's next block did not help: 3 to 25 % slower on Zen 5, whose own prefetchers follow the
// panels.
template <typename W, typename T>
void multiply_panels(const Strip<T>& s, const PackedWeights& w, size_t panel, size_t panels,
                     size_t columns) {
  constexpr size_t N = hn::MaxLanes(hn::CappedTag<T, kHalf<T>>());
  const W* b = reinterpret_cast<const W*>(w.panel(panel));
  const T* bias = reinterpret_cast<const T*>(w.bias(panel));
  const size_t K = w.K(), block = kBlockK / panels;
  size_t k0 = 0;
  do {
    const size_t n_k = std::min(block, K - k0);
    const bool last = k0 + n_k == K;
    for (size_t n = 0; n < std::min(kHalf<T>, columns); n += N) {
      size_t m = 0;
      for (size_t tiles = (s.rows + kMaxRows - 1) / kMaxRows; tiles > 0; --tiles) {
        const size_t n_m = (s.rows - m + tiles - 1) / tiles;  // of equal height, up to one
        const auto row = static_cast<ptrdiff_t>(m);
        choose_tile(panels, n_m,
                    Tile<T, W>{s.a.data + row * s.a.stride + static_cast<ptrdiff_t>(k0) * s.a.step,
                               s.a.stride, s.a.step, b + k0 / kRowsAWord<W> * kRowWords<W> + n,
                               w.padded_K() / kRowsAWord<W> * kRowWords<W>, s.c + row * s.ldc + n,
                               s.ldc, n_k, k0 > 0, last ? bias + n : nullptr});
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

// The rows of a block of A, in place or copied: widened and side by side.
template <typename T>
RowsOfA<T> rows_of_a(const MatmulArgs& args, const MatmulBlock& block,
                     runtime::ScratchFrame& scratch) {
  const size_t K = args.w->K(), width = size_of(args.a_dtype);
  const bool uniform = is_uniform(args.a_rows, args.M);
  const ptrdiff_t stride = row_stride(args.a_rows), step = args.a_stride_k;
  const bool transposed = uniform && stride == 1 && step != 1;
  const std::byte* first = at(args.a, args.a_rows.offset(block.m0), width);
  if (args.a_dtype == args.w->dtype() && uniform &&
      (transposed ? !collides<T>(step, K) : step == 1 && !collides<T>(stride, block.rows)))
    return {reinterpret_cast<const T*>(first), stride, step};
  constexpr size_t kApart = PackedWeights::kPanelBytes / sizeof(T);
  if (transposed) {
    T* copy = scratch.take<T>(K * (block.rows + kApart));
    const auto ld = static_cast<ptrdiff_t>(block.rows + kApart);
    for (size_t k = 0; k < K; ++k) {
      const auto row = static_cast<ptrdiff_t>(k);
      widen_row<T>(at(first, row * step, width), args.a_dtype, 1, block.rows, copy + row * ld);
    }
    return {copy, 1, ld};
  }
  const size_t ld = K + kApart;
  T* copy = scratch.take<T>(block.rows * ld);
  for (size_t m = 0; m < block.rows; ++m)
    widen_row<T>(at(args.a, args.a_rows.offset(block.m0 + m), width), args.a_dtype, args.a_stride_k,
                 K, copy + m * ld);
  return {copy, static_cast<ptrdiff_t>(ld), 1};
}

template <typename W, typename T>
void multiply_block(const MatmulArgs& args, const MatmulBlock& block) {
  runtime::ScratchFrame scratch;
  const PackedWeights& w = *args.w;
  const size_t rows = block.rows, at_once = panels_at_once(rows);
  const RowsOfA<T> a = rows_of_a<T>(args, block, scratch);
  const ptrdiff_t ldc = row_stride(args.c_rows);
  const bool direct = args.c_dtype == w.dtype() && args.c_stride_n == 1 &&
                      is_uniform(args.c_rows, args.M) &&
                      !(w.K() > kBlockK && collides<T>(ldc, rows));
  const size_t ld_copy = at_once * kColumns<T>;
  T* copy = scratch.take<T>(rows * ld_copy);
  const size_t end = block.panel0 + block.panels;
  for (size_t p = block.panel0, n_p; p < end; p += n_p) {
    for (n_p = at_once; n_p > end - p;) n_p /= 2;
    const size_t n0 = p * kColumns<T>, n = std::min(n_p * kColumns<T>, w.N() - n0);
    const auto c_at = [&](size_t m) {
      return const_cast<std::byte*>(at(
          args.c, args.c_rows.offset(block.m0 + m) + static_cast<ptrdiff_t>(n0) * args.c_stride_n,
          size_of(args.c_dtype)));
    };
    if (direct && n0 + n_p * kColumns<T> <= std::max(w.N(), args.c_columns)) {
      multiply_panels<W>(Strip<T>{rows, a, reinterpret_cast<T*>(c_at(0)), ldc}, w, p, n_p, n);
      continue;
    }
    multiply_panels<W>(Strip<T>{rows, a, copy, static_cast<ptrdiff_t>(ld_copy)}, w, p, n_p, n);
    for (size_t m = 0; m < rows; ++m)
      narrow_row<T>(copy + m * ld_copy, n, c_at(m), args.c_dtype, args.c_stride_n);
  }
}

void matmul_block(const MatmulArgs& args, const MatmulBlock& block) {
  if (args.w->dtype() == DType::f64)
    multiply_block<double, double>(args, block);
  else if (args.w->stored() == DType::bf16)
    multiply_block<BfloatWord, float>(args, block);
  else
    multiply_block<float, float>(args, block);
}

}  // namespace
}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(matmul_block);

void matmul_block(const MatmulArgs& args, const MatmulBlock& block) {
  if (block.rows == 0 || block.panels == 0) return;
  if (is_amx_product(args)) {
    amx_matmul_block(args, block);
    return;
  }
  HWY_DYNAMIC_DISPATCH(matmul_block)(args, block);
}

}  // namespace headwise::kernels
#endif
