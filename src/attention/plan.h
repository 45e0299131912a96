// How a call is cut into tasks: how many queries at a time and in which order. Sizes alone decide
// it, never the number of threads, and no decision changes a bit of the result.
#pragma once

#include <cstddef>

#include "attention/kernel_choice.h"
#include "attention/problem.h"

namespace headwise::attention {

// How the decode kernel's work is cut. Rows are the queries of all query heads of a KV head.
struct DecodeCut {
  std::size_t n_blocks = 1;  // of rows, for each KV head
  std::size_t n_leaves = 1;  // of one task, a power of two
  std::size_t n_parts = 1;   // tasks that share the keys of one block
};

struct Plan {
  Kernel kernel = Kernel::flash;
  const char* reason = "";
  std::size_t block_q = 1;        // queries of one task
  std::size_t tail = 0;           // the last few queries, which the decode kernel takes
  std::size_t n_blocks = 0;       // of each head
  std::size_t n_tasks = 0;        // what threads share to make the output
  bool longest_first = false;     // causal: the last queries see the most keys
  bool on_calling_thread = true;  // too little work to wake others
  DecodeCut decode;
};

// Multiply-adds below which waking threads costs more than it saves. Measured on 2 cores with
// AVX-512 (2 threads / 1, in us): 1.5e5 4.8 / 2.9, 3.3e5 6.4 / 5.6, 5.9e5 6.9 / 10.0 with 16 heads
// and 7.6 / 6.9 with 4, 1.2e6 8.5 / 13.3, 2.4e6 15 / 26.
inline constexpr double kWorthThreads = 5e5;

Plan make_plan(const Problem& problem, const Outputs& outputs);

// Pairs of a query and a key that causal lets it see, in all heads; masks are not read.
double n_visible_pairs(const Problem& problem);

// Working memory of n_threads threads together for the output alone.
std::size_t scratch_bytes(const Problem& problem, const Plan& plan, std::size_t n_threads);

struct Task {
  std::size_t b, h;     // flat batch index, query head
  std::size_t t0, n_q;  // queries [t0, t0 + n_q)
};

// Task `index` in [0, n_tasks). Neighbours share keys and values, so that they stay in cache.
Task task_at(const Problem& problem, const Plan& plan, std::size_t index);

bool is_tail(const Problem& problem, const Plan& plan, const Task& task);

// Queries of block `n` of every head, in the order of the plan.
Task block_at(const Problem& problem, const Plan& plan, std::size_t n);

}  // namespace headwise::attention
