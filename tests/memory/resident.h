// What a call takes, as the kernel counts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "support/environment.h"

namespace headwise::test {

// With a sanitizer, shadow memory counts too, and the long call takes minutes.
inline const bool kSanitized = sanitized();

// VmRSS or VmHWM in MiB.
inline double status_mib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) / 1024.0;
  return std::numeric_limits<double>::quiet_NaN();
}

// Brings the recorded peak down to what is resident now, or finds it there: in a new process.
inline bool reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return status_mib("VmHWM") - status_mib("VmRSS") < 1.0;
}

template <typename F>
double peak_mib_beyond(F&& call) {
  const double before = status_mib("VmRSS");
  call();
  return status_mib("VmHWM") - before;
}

// Touched, so that it is resident before the call.
inline std::vector<float> numbers(std::size_t n, std::uint32_t seed) {
  std::vector<float> values(n);
  for (float& x : values) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return values;
}

}  // namespace headwise::test
