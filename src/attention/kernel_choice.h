// Which kernel computes a call: the only place that decides. Sizes, dtype and CPU decide, never the
// batch or the number of threads, for the kernels' bits differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/problem.h"
#include "kernels/flash_forward.h"

namespace headwise::attention {

enum class Kernel : std::uint8_t {
  flash,     // blocks of queries against all their keys, online softmax
  decode,    // few queries: those that share keys and values together, keys shared by threads
  bf16_amx,  // the same on AMX's tiles, for groups of blocks
  bf16_dot,  // as flash, with instructions that add up products of pairs of bf16
};

struct KernelChoice {
  Kernel kernel;
  const char* reason;
};

KernelChoice choose_kernel(const Problem& problem);

// How many of the last queries of a head are better left to the decode kernel, when another takes
// them by the vector: those that would leave most of one empty.
std::size_t n_tail_queries(const Problem& problem);

const char* name_of(Kernel kernel);

// How a kernel that takes blocks of queries, every one but decode, computes one, and what memory it
// takes for that.
struct BlockKernel {
  void (*run)(const kernels::FlashForwardArgs&);
  std::size_t (*scratch)(const kernels::FlashForwardArgs&);
};
BlockKernel block_kernel(Kernel kernel);

// Throws ArgumentError when HEADWISE_KERNEL names no kernel of this CPU and set_kernel has not been
// called since; costs one load.
void require_valid_kernel();

}  // namespace headwise::attention
