// Forward attention of bf16 on the instruction that adds products of pairs to f32: see
// dot_forward.cc.
#pragma once

#include <cstddef>

#include "kernels/flash_forward.h"

namespace headwise::kernels {

// Does the CPU have the instruction? And does the active instruction set use it too?
bool bf16_dot_on_cpu();
bool bf16_dot_available();

// Is it faster than f32 multiply-adds? It has twice their work in it, but some CPUs run it at half
// their rate, so it is timed once, for some microseconds, at the first call.
bool bf16_dot_is_fast();

// As flash_forward, for args.dtype bf16 where bf16_dot_available().
void bf16_dot_forward(const FlashForwardArgs& args);
std::size_t bf16_dot_scratch(const FlashForwardArgs& args);

}  // namespace headwise::kernels
