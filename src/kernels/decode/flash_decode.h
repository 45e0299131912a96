// Forward attention for a few queries that share their keys and values: see flash_decode.cc.
#pragma once

#include <cstddef>

#include "kernels/args.h"

namespace headwise::kernels {

// One query head of a group.
struct DecodeHead {
  ConstMatrix q;            // [T_q, d_head]
  Matrix o;                 // [T_q, d_v]
  void* row_max = nullptr;  // [T_q] contiguous f32 (f64 for f64), may be null
  void* row_sum = nullptr;  // [T_q], may be null
  ScoreTerms terms;
  Dropout dropout;
};

struct FlashDecodeArgs {
  DType dtype = DType::f32;           // of q, k, v and o; sums in f32, in f64 for f64
  const DecodeHead* heads = nullptr;  // those that share k and v
  ConstMatrix k;                      // [T_k, d_head]
  ConstMatrix v;                      // [T_k, d_v]
  std::size_t T_q = 0, T_k = 0, d_head = 0, d_v = 0;
  // Row r is query r % T_q of head r / T_q; the rows to compute: [row0, row0 + n_rows).
  std::size_t row0 = 0, n_rows = 0;
};

// Rows that a call may be given, because it reads the keys once for all of them.
inline constexpr std::size_t kMostDecodeRows = 64;

// Bytes of the state of n_rows rows. States are aligned to 64 bytes.
std::size_t decode_state_size(const FlashDecodeArgs& args);

// Working memory that flash_decode takes for these sizes on the active instruction set.
std::size_t flash_decode_scratch(const FlashDecodeArgs& args, std::size_t n_leaves);

// The state of the leaves [leaf0, leaf0 + n_leaves), as far as there are keys: an aligned power of
// two of them, so that it is a node of the tree of leaves (tiles.h).
void flash_decode(const FlashDecodeArgs& args, std::size_t leaf0, std::size_t n_leaves,
                  void* state);

// Merges the states of neighbouring ranges of leaves, all of one length, and writes the results.
// The states' memory is used up.
void finish_decode(const FlashDecodeArgs& args, void* states, std::size_t n_states);

}  // namespace headwise::kernels
