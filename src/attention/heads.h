// The views of a problem as the kernels take them: matrices and terms of one (batch, head).
#pragma once

#include <cstddef>

#include "attention/problem.h"
#include "kernels/args.h"
#include "kernels/attention_weights.h"
#include "runtime/scratch.h"

namespace headwise::attention {

kernels::ConstMatrix matrix_of(const Input& input, const Shape& position, std::size_t h);
kernels::Matrix matrix_of(const Output& output, const Shape& position, std::size_t h);
kernels::ScoreTerms terms_of(const Problem& p, const Shape& position, std::size_t h);
kernels::Dropout dropout_of(const Problem& p, std::size_t b, std::size_t h);

// Row max and row sum as kernels write them: contiguous over a head's queries.
struct RowStates {
  Output row_max, row_sum;
  bool wanted = false;
};

// A caller's tensor serves where it is contiguous in t; otherwise scratch [n_batch, n_heads, T_q].
RowStates place_row_states(const Problem& p, const Outputs& out, runtime::ScratchFrame& frame);

// One head's queries [t0, t0 + n_q).
struct HeadRows {
  std::size_t h, t0, n_q;
};

// What a kernel left in scratch goes to the caller's strides.
void write_row_outputs(const Problem& p, const Outputs& out, const RowStates& rows,
                       const Shape& position, const HeadRows& at);

kernels::WeightsHead weights_head(const Problem& p, const RowStates& rows, std::size_t b,
                                  std::size_t h);

}  // namespace headwise::attention
