// Gradients of attention for ranges of queries and keys of one key and value head: see
// flash_backward.cc.
#pragma once

#include <cstddef>

#include "kernels/args.h"

namespace headwise::kernels {

// Queries and keys of one tile. Sums over them run in chunks of this size on every instruction set,
// and ranges begin at multiples of it, so that cutting a head into tasks changes no bit.
inline constexpr std::size_t kBackwardTile = 64;

// Keys that are held at a time: K, V, dK and dV of 64 features take 256 KiB of f32. A call should
// be given as many, or as many queries.
inline constexpr std::size_t kBackwardBlock = 256;
static_assert(kBackwardBlock % kBackwardTile == 0);

// What the gradients need of one query head. Row arrays are contiguous over t, in f32 (f64 for
// f64).
struct BackwardHead {
  ConstMatrix q;                  // [T_q, d_head]
  ConstMatrix k;                  // [T_k, d_head]
  ConstMatrix v;                  // [T_k, d_v]
  ConstMatrix d_o;                // [T_q, d_v]
  const void* row_max = nullptr;  // [T_q] m, or 0 for a query that sees no key
  const void* inverse = nullptr;  // [T_q] 1 / l, or 0 for such a query
  const void* delta = nullptr;    // [T_q] sum over i of d_o o
  ScoreTerms terms;
  Dropout dropout;
  // Gradients of the weights after dropout, in dtype, each times its factor; data null: none.
  ConstMatrix d_weights[2] = {};  // [T_q, T_k]
  double d_weights_factor[2] = {1.0, 1.0};
};

struct FlashBackwardArgs {
  DType dtype = DType::f32;             // of q, k, v and d_o
  const BackwardHead* heads = nullptr;  // the query heads of one key and value head
  std::size_t n_heads = 0;
  const Matrix* dq = nullptr;  // [n_heads] of [T_q, d_head]; null: not wanted
  Matrix dk, dv;               // [T_k, d_head] and [T_k, d_v]; data null: not wanted
  DType dq_dtype = DType::f32, dk_dtype = DType::f32, dv_dtype = DType::f32;
  std::size_t T_q = 0, T_k = 0, d_head = 0, d_v = 0;
  std::size_t t0 = 0, n_q = 0;  // the queries: dq is theirs, over the keys below
  std::size_t j0 = 0, n_k = 0;  // the keys: dk and dv are theirs, over the queries above
};

// Bytes of working memory that a call takes on the active instruction set.
std::size_t flash_backward_scratch(const FlashBackwardArgs& args);

void flash_backward(const FlashBackwardArgs& args);

// Row arrays of queries [t0, t0 + n_q): row_max and inverse hold m and l and become what
// BackwardHead says; delta is written.
struct BackwardRowsArgs {
  DType dtype = DType::f32;
  ConstMatrix o, d_o;  // [T_q, d_v]
  void* row_max = nullptr;
  void* inverse = nullptr;
  void* delta = nullptr;
  std::size_t d_v = 0;
  std::size_t t0 = 0, n_q = 0;
};

void backward_rows(const BackwardRowsArgs& args);

// delta where weights have gradients: the sum of P dP over all keys, for all queries of heads[0],
// whose own delta must be 0 until it is written here.
void backward_delta(const FlashBackwardArgs& args, void* delta);

}  // namespace headwise::kernels
