#include "core/philox.h"

#include <cmath>

namespace headwise::core {

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxMultiplier[0]} * counter[0];
    const std::uint64_t b = std::uint64_t{kPhiloxMultiplier[1]} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
  }
  return counter;
}

bool dropout_keeps(double p, std::uint64_t seed, std::uint64_t head, std::size_t t, std::size_t j) {
  const PhiloxCounter words =
      philox({static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(j / 4),
              static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(head >> 32)},
             {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return words[j % 4] >= dropout_threshold(p);
}

std::uint64_t dropout_threshold(double p) {
  return static_cast<std::uint64_t>(std::ceil(p * 0x1p32));
}

}  // namespace headwise::core
