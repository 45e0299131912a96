// Forward attention for a few queries against a long cache of keys and values: all tokens and all
// query heads that share them together, so that K and V are read once.
//   S = Q K^T [n_rows, 512]   P = exp(S - m)   O += P V [n_rows, d_v]      for each leaf
// Queries are rows: d_head lies in lanes for S, keys for P, d_v for O. Memory bounds it:
// (d_head + d_v) elements for 2 n_rows (d_head + d_v) flops a key, up to about 8 rows of f32.
// Order of summation: row_scores-inl.h; m is a leaf's largest score, so that nothing is rescaled
// within it; l in virtual lanes and their halves; values in ascending tiles; leaves are merged
// along a binary tree (tiles.h), whoever has made their states.
#include "kernels/decode/flash_decode.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/targets.h"
#include "runtime/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode/flash_decode.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/decode/row_mask-inl.h"
#include "kernels/decode/row_values-inl.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLeafTiles = kLeafK / kTileK;

// The softmax of some keys, unnormalised, of one row. A row that saw no key: o = 0,
// m = -inf, l = 0, seen = 0.
template <typename T>
struct RowState {
  T* o;     // [padded d_v]
  T* m;     // largest score
  T* l;     // sum of exp(score - m)
  T* seen;  // 1 or 0

  RowState(T* state, size_t d_v, size_t row) {
    o = state + row * size(d_v);
    m = o + padded<T>(d_v);
    l = m + 1;
    seen = m + 2;
  }
  static size_t size(size_t d_v) { return padded<T>(d_v) + kVirtualLanes<T>; }
};

template <typename T>
HWY_INLINE T exp_of(T x) {
  const hn::ScalableTag<T> d;
  return hn::GetLane(exp_nonpositive(d, hn::Set(d, x)));
}

// into = into and the later keys of `from`.
template <typename T>
void merge_rows(T* into, T* from, size_t n_rows, size_t d_v) {
  const hn::ScalableTag<T> d;
  for (size_t r = 0; r < n_rows; ++r) {
    const RowState<T> a(into, d_v, r), b(from, d_v, r);
    if (*b.seen == 0) continue;
    const T m = *b.m > *a.m ? *b.m : *a.m, base = m == kNegInf<T> ? T{0} : m;
    const T scale_a = *a.seen == 0 ? T{0} : exp_of(*a.m - base), scale_b = exp_of(*b.m - base);
    for (size_t i = 0; i < padded<T>(d_v); i += kVectorLanes<T>) {
      const auto kept = hn::Mul(hn::Load(d, a.o + i), hn::Set(d, scale_a));
      hn::Store(hn::MulAdd(hn::Load(d, b.o + i), hn::Set(d, scale_b), kept), d, a.o + i);
    }
    *a.l = *a.l * scale_a + *b.l * scale_b;
    *a.m = m;
    *a.seen = 1;
  }
}

template <typename T>
struct DecodeWorkspace {
  QueryRows<T> rows;
  T* s;                   // [n_rows][kLeafK] scores, then weights
  T* v_rows;              // [kTileK][d_v] widened
  std::uint64_t* hidden;  // [kLeafTiles][n_rows] keys
  T** states;             // the leaves' stack; the first is the caller's
};

template <typename T, class Frame>
DecodeWorkspace<T> take_workspace(const FlashDecodeArgs& a, size_t n_leaves, Frame& frame) {
  DecodeWorkspace<T> w;
  w.rows = take_query_rows<T>(a.n_rows, a.d_head, frame);
  w.s = frame.template take<T>(a.n_rows * kLeafK);
  w.v_rows = frame.template take<T>(kTileK * a.d_v);
  w.hidden = frame.template take<std::uint64_t>(kLeafTiles * a.n_rows);
  const auto n_states = static_cast<size_t>(std::bit_width(n_leaves)) + 1;
  w.states = frame.template take<T*>(n_states);
  for (size_t i = 1; i < n_states; ++i) {
    T* state = frame.template take<T>(a.n_rows * RowState<T>::size(a.d_v));
    if (w.states != nullptr) w.states[i] = state;
  }
  return w;
}

template <typename T, typename E>
class Decode {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr size_t N = kVectorLanes<T>;

  Decode(const FlashDecodeArgs& args, const DecodeWorkspace<T>& workspace)
      : a_(args), w_(workspace) {}

  void run(size_t leaf0, size_t n_leaves) {
    prepare();
    size_t depth = 0;  // states on the stack: the counter's set bits
    for (size_t n = 0; n < n_leaves && (leaf0 + n) * kLeafK < a_.T_k; ++n) {
      run_leaf((leaf0 + n) * kLeafK, w_.states[depth]);
      for (size_t counter = n; counter & 1; counter >>= 1, --depth)
        merge_rows(w_.states[depth - 1], w_.states[depth], a_.n_rows, a_.d_v);
      ++depth;
    }
    if (depth == 0) start(w_.states[depth++]);
    for (; depth > 1; --depth)
      merge_rows(w_.states[depth - 2], w_.states[depth - 1], a_.n_rows, a_.d_v);
  }

 private:
  void prepare() {
    for (size_t r = 0; r < a_.n_rows; ++r) {
      const DecodeHead& head = a_.heads[(a_.row0 + r) / a_.T_q];
      const size_t t = (a_.row0 + r) % a_.T_q;
      const auto offset = static_cast<std::ptrdiff_t>(t) * head.q.stride_t;
      w_.rows.at[r] = {advance(head.q.data, a_.dtype, offset), head.q.stride_i, &head.terms,
                       &head.dropout, t};
    }
    pack(w_.rows, a_.dtype, a_.d_head);
  }

  RowState<T> row_of(T* state, size_t r) const { return {state, a_.d_v, r}; }

  void start(T* state) {
    for (size_t r = 0; r < a_.n_rows; ++r) {
      const RowState<T> row = row_of(state, r);
      std::fill_n(row.o, padded<T>(a_.d_v), T{0});
      *row.m = kNegInf<T>;
      *row.l = *row.seen = 0;
    }
  }

  void run_leaf(size_t leaf0, T* state) {
    start(state);
    const size_t n_keys = std::min(kLeafK, a_.T_k - leaf0);
    for (size_t j = 0; j < n_keys; j += kTileK)
      score(j / kTileK, leaf0 + j, std::min(kTileK, n_keys - j), state);
    for (size_t r = 0; r < a_.n_rows; ++r)
      softmax(w_.s + r * kLeafK, (n_keys + kTileK - 1) / kTileK * kTileK, row_of(state, r));
    for (size_t j = 0; j < n_keys; j += kTileK)
      add_values(j / kTileK, leaf0 + j, std::min(kTileK, n_keys - j), state);
  }

  // Keys of a tile that some row sees, and those that all of them see.
  struct Seen {
    std::uint64_t by_any, by_all;
  };
  Seen seen_keys(size_t tile, size_t n) const {
    Seen seen{0, low_bits(n)};
    for (size_t r = 0; r < a_.n_rows; ++r) {
      const std::uint64_t visible = ~w_.hidden[tile * a_.n_rows + r] & low_bits(n);
      seen.by_any |= visible;
      seen.by_all &= visible;
    }
    return seen;
  }

  void score(size_t tile, size_t j0, size_t n, T* state) {
    std::uint64_t* hidden = w_.hidden + tile * a_.n_rows;
    masked_scores<T, E>(w_.rows, a_.k, a_.dtype, a_.d_head, j0, n, rows_after(false, j0), hidden,
                        w_.s + tile * kTileK);
    for (size_t r = 0; r < a_.n_rows; ++r)
      if ((~hidden[r] & low_bits(n)) != 0) *row_of(state, r).seen = 1;
  }

  const char* row_at(const ConstMatrix& x, size_t j) const {
    return static_cast<const char*>(
        advance(x.data, a_.dtype, static_cast<std::ptrdiff_t>(j) * x.stride_t));
  }

  // What follows the keys or values of the tile at j0: the leaf's other tiles, then its values or
  // the next leaf's keys.
  Ahead rows_after(bool values, size_t j0) const {
    const ConstMatrix &x = values ? a_.v : a_.k, &other = values ? a_.k : a_.v;
    const size_t width = values ? a_.d_v : a_.d_head;
    if (width * sizeof(E) < 64 || !in_place(x, width)) return {};  // narrow: not worth the effort
    constexpr auto kBytes = static_cast<std::ptrdiff_t>(sizeof(E));
    const size_t leaf0 = j0 / kLeafK * kLeafK, leaf_end = std::min(a_.T_k, leaf0 + kLeafK);
    const size_t then = values ? std::min(leaf_end, a_.T_k - 1) : leaf0;
    Ahead ahead;
    ahead.rows = row_at(x, j0);
    ahead.stride = x.stride_t * kBytes;
    ahead.width = width * sizeof(E);
    ahead.distance = kAheadBytes / ahead.width;
    ahead.end = leaf_end - j0;
    ahead.then = row_at(other, then);
    ahead.then_stride = other.stride_t * kBytes;
    ahead.then_last = a_.T_k - 1 - then;
    return ahead;
  }

  // n scores of a leaf, a multiple of kTileK, to weights. Lanes are virtual, so that their number
  // and with it the order of the sum is the same everywhere.
  void softmax(T* s, size_t n, const RowState<T>& row) {
    const D d;
    V lanes[kParts<T>];
    HWY_ALIGN T each[kVirtualLanes<T>];
    for (V& part : lanes) part = hn::Set(d, kNegInf<T>);
    for (size_t j = 0; j < n; j += kVirtualLanes<T>)
      for (size_t p = 0; p < kParts<T>; ++p)
        lanes[p] = max_unless_nan(hn::Load(d, s + j + p * N), lanes[p]);
    for (size_t p = 0; p < kParts<T>; ++p) hn::Store(lanes[p], d, each + p * N);
    for (size_t w = kVirtualLanes<T> / 2; w != 0; w /= 2)
      for (size_t x = 0; x < w; ++x) each[x] = each[x + w] > each[x] ? each[x + w] : each[x];
    *row.m = each[0];

    const V base = hn::Set(d, each[0] == kNegInf<T> ? T{0} : each[0]);
    for (V& part : lanes) part = hn::Zero(d);
    for (size_t j = 0; j < n; j += kVirtualLanes<T>)
      for (size_t p = 0; p < kParts<T>; ++p) {
        T* at = s + j + p * N;
        const V weight = exp_nonpositive(d, hn::Sub(hn::Load(d, at), base));
        lanes[p] = hn::Add(lanes[p], weight);
        hn::Store(weight, d, at);
      }
    for (size_t p = 0; p < kParts<T>; ++p) hn::Store(lanes[p], d, each + p * N);
    for (size_t w = kVirtualLanes<T> / 2; w != 0; w /= 2)
      for (size_t x = 0; x < w; ++x) each[x] += each[x + w];
    *row.l = each[0];
  }

  void add_values(size_t tile, size_t j0, size_t n, T* state) {
    const Seen seen = seen_keys(tile, n);
    if (seen.by_any == 0) return;
    T* p = w_.s + tile * kTileK;
    for (size_t r = 0; r < a_.n_rows; ++r) drop_row(w_.rows.at[r], j0, n, p + r * kLeafK);
    const Rows<E> v = tile_of<T, E>(a_.v, a_.dtype, j0, n, a_.d_v, w_.v_rows);
    // Where only some rows see a key, its NaN or inf must not meet the p = 0 of the others.
    std::uint64_t special = special_keys<T>(seen.by_any & ~seen.by_all, v, a_.d_v);
    value_row_tile(p, a_.n_rows, v, Spans(seen.by_any & ~special), a_.d_v, rows_after(true, j0),
                   row_of(state, 0).o, RowState<T>::size(a_.d_v));
    for (; special != 0; special &= special - 1) {
      const int j = std::countr_zero(special);
      for (size_t r = 0; r < a_.n_rows; ++r)
        if ((w_.hidden[tile * a_.n_rows + r] >> j & 1) == 0)
          add_value_row(p[r * kLeafK + static_cast<size_t>(j)], v.data + j * v.stride, a_.d_v,
                        row_of(state, r).o);
    }
  }

  const FlashDecodeArgs& a_;
  const DecodeWorkspace<T>& w_;
};

template <typename T, typename E>
void decode(const FlashDecodeArgs& a, size_t leaf0, size_t n_leaves, T* state) {
  runtime::ScratchFrame frame;
  const DecodeWorkspace<T> w = take_workspace<T>(a, n_leaves, frame);
  w.states[0] = state;
  Decode<T, E>(a, w).run(leaf0, n_leaves);
}

void flash_decode_on_target(const FlashDecodeArgs& a, size_t leaf0, size_t n_leaves, void* state) {
  with_element_type(a.dtype, in_place(a.k, a.d_head) && in_place(a.v, a.d_v), [&](auto t, auto e) {
    using T = decltype(t);
    decode<T, decltype(e)>(a, leaf0, n_leaves, static_cast<T*>(state));
  });
}

size_t flash_decode_scratch_on_target(const FlashDecodeArgs& a, size_t n_leaves) {
  runtime::ScratchSize size;
  if (a.dtype == DType::f64)
    take_workspace<double>(a, n_leaves, size);
  else
    take_workspace<float>(a, n_leaves, size);
  return size.bytes();
}

// Divides by the row sums and writes. A row that saw no key: o = 0, m = -inf, l = 0. One that saw
// only scores of -inf has 0 / 0: NaN, in m and l too.
template <typename T>
void write_row(const FlashDecodeArgs& a, size_t r, const RowState<T>& row) {
  const hn::ScalableTag<T> d;
  const DecodeHead& head = a.heads[(a.row0 + r) / a.T_q];
  const size_t t = (a.row0 + r) % a.T_q;
  if (*row.seen != 0 && !(*row.l > 0)) *row.m = *row.l = std::numeric_limits<T>::quiet_NaN();
  const auto divisor = hn::Set(d, *row.seen != 0 ? *row.l : T{1});
  for (size_t i = 0; i < padded<T>(a.d_v); i += kVectorLanes<T>)
    hn::Store(hn::Div(hn::Load(d, row.o + i), divisor), d, row.o + i);
  narrow_row(row.o, a.d_v,
             advance(head.o.data, a.dtype, static_cast<std::ptrdiff_t>(t) * head.o.stride_t),
             a.dtype, head.o.stride_i);
  if (head.row_max != nullptr) static_cast<T*>(head.row_max)[t] = *row.m;
  if (head.row_sum != nullptr) static_cast<T*>(head.row_sum)[t] = *row.l;
}

template <typename T>
void finish(const FlashDecodeArgs& a, T* states, size_t n_states) {
  const size_t size = a.n_rows * RowState<T>::size(a.d_v);
  T* stack[std::numeric_limits<size_t>::digits + 1];
  size_t depth = 0;
  for (size_t n = 0; n < n_states; ++n) {
    stack[depth] = states + n * size;
    for (size_t counter = n; counter & 1; counter >>= 1, --depth)
      merge_rows(stack[depth - 1], stack[depth], a.n_rows, a.d_v);
    ++depth;
  }
  for (; depth > 1; --depth) merge_rows(stack[depth - 2], stack[depth - 1], a.n_rows, a.d_v);
  for (size_t r = 0; r < a.n_rows; ++r) write_row(a, r, RowState<T>(states, a.d_v, r));
}

void finish_decode_on_target(const FlashDecodeArgs& a, void* states, size_t n_states) {
  if (a.dtype == DType::f64)
    finish(a, static_cast<double*>(states), n_states);
  else
    finish(a, static_cast<float*>(states), n_states);
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::kernels {

HWY_EXPORT(flash_decode_on_target);
HWY_EXPORT(flash_decode_scratch_on_target);
HWY_EXPORT(finish_decode_on_target);

std::size_t decode_state_size(const FlashDecodeArgs& args) {
  const std::size_t size = args.dtype == DType::f64 ? sizeof(double) : sizeof(float);
  return args.n_rows * ((args.d_v * size + 63) / 64 + 1) * 64;  // RowState
}

std::size_t flash_decode_scratch(const FlashDecodeArgs& args, std::size_t n_leaves) {
  return HWY_DYNAMIC_DISPATCH(flash_decode_scratch_on_target)(args, n_leaves);
}

void flash_decode(const FlashDecodeArgs& args, std::size_t leaf0, std::size_t n_leaves,
                  void* state) {
  if (args.n_rows != 0) HWY_DYNAMIC_DISPATCH(flash_decode_on_target)(args, leaf0, n_leaves, state);
}

void finish_decode(const FlashDecodeArgs& args, void* states, std::size_t n_states) {
  if (args.n_rows != 0) HWY_DYNAMIC_DISPATCH(finish_decode_on_target)(args, states, n_states);
}

}  // namespace headwise::kernels
#endif
