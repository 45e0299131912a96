// Forward attention of bf16 on AMX: see amx_forward.cc.
#pragma once

#include <cstddef>

#include "kernels/flash_forward.h"

namespace headwise::kernels {

// Has the CPU AMX for bf16, and does the system let this process use it (asked for at the first
// call)? And does the active instruction set use it too?
bool amx_on_cpu();
bool bf16_amx_available();

// How many queries at most share what keys and values are made into.
inline constexpr std::size_t kAmxGroup = 512;

// As flash_forward, for args.dtype bf16 without dropout where bf16_amx_available(). Full speed
// where args.n_q is some hundreds.
void bf16_amx_forward(const FlashForwardArgs& args);
// For args.n_q queries.
std::size_t bf16_amx_scratch(const FlashForwardArgs& args);

}  // namespace headwise::kernels
