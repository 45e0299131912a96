// Philox4x32-10, the counter-based generator of dropout: no state, so any draw can be made by any
// thread at any time.
// (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headwise::core {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::uint32_t kPhiloxMultiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr std::uint32_t kPhiloxWeyl[2] = {0x9E3779B9u, 0xBB67AE85u};

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key);

// Is weight (t, j) of a head kept by dropout of probability p? One counter serves four keys.
bool dropout_keeps(double p, std::uint64_t seed, std::uint64_t head, std::size_t t, std::size_t j);

// The smallest 32-bit draw that is kept: draw * 2^-32 >= p. Past 32 bits when p is 1.
std::uint64_t dropout_threshold(double p);

}  // namespace headwise::core
