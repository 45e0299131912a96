// The forward call by the decode kernel: few queries, all that share keys and values in one task.
#pragma once

#include <cstddef>

#include "attention/heads.h"
#include "attention/plan.h"
#include "attention/problem.h"

namespace headwise::attention {

void decode(const Problem& p, const Plan& plan, const Outputs& out, const RowStates& rows);

// The queries of one task of another kernel's plan.
void decode_tail(const Problem& p, const Outputs& out, const RowStates& rows, const Task& task);
std::size_t tail_scratch(const Problem& p, const Plan& plan);

// Working memory for the output alone: what a call takes once, and what each thread takes.
struct DecodeScratch {
  std::size_t shared, each_thread;
};
DecodeScratch decode_scratch(const Problem& p, const Plan& plan);

}  // namespace headwise::attention
