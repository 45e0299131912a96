// Which instruction sets are compiled: included before any Highway header.
// Four on x86: SSSE3 adds nothing over SSE4 here, and the subsets past AVX-512's first five
// extensions are used by files of their own. Fewer targets, shorter builds.
#pragma once

// Our "scalar" too: HWY_EMU128, or HWY_SCALAR (one lane, no shuffles) under g++ before 12.3, which
// Highway 1.0.3 takes to be broken for the former.
#define HWY_COMPILE_ALL_ATTAINABLE
#if defined(__x86_64__) || defined(__i386__)
// Bits of Highway's targets, stable since 0.15; newer ones have no name in 1.0.3.
// SPR 4, ZEN4 6, DL 7, SSSE3 12, SSE2 14 (and AVX10: 3, 5).
#define HWY_DISABLED_TARGETS \
  ((1LL << 3) | (1LL << 4) | (1LL << 5) | (1LL << 6) | (1LL << 7) | (1LL << 12) | (1LL << 14))
#elif defined(__aarch64__) || defined(__arm__)
// Scalable vectors cannot be elements of arrays, which the register blocks are made of.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
