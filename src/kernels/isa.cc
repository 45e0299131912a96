// Instruction sets by name: Highway's targets behind the public names of runtime.h.
#include "kernels/isa.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "headwise/runtime.h"
#include "kernels/targets.h"

#include "hwy/highway.h"

namespace headwise {
namespace {

struct IsaName {
  std::int64_t target;
  const char* name;
};

constexpr IsaName kIsas[] = {
    // best first
    {HWY_AVX3, "avx512"}, {HWY_AVX2, "avx2"}, {HWY_SSE4, "sse4"},
    {HWY_NEON, "neon"},   {HWY_WASM, "wasm"}, {HWY_BASELINE_SCALAR, "scalar"},
};

std::int64_t detected_targets() {
  static const std::int64_t targets = [] {
    hwy::SetSupportedTargetsForTest(0);
    return (hwy::SupportedTargets() | HWY_BASELINE_SCALAR) & HWY_TARGETS;
  }();
  return targets;
}

std::string choices() {
  std::string text = "auto";
  for (const std::string& name : available_isas()) text += ", " + name;
  return text;
}

std::string quoted(std::string_view name) {
  std::string text = "\"";  // appended to: g++ 12 sees overlap in a sum of strings
  return text.append(name.substr(0, 40)).append("\"");
}

std::atomic<bool> environment_is_wrong{false};

bool choose(std::string_view name) {
  std::int64_t targets = 0;
  if (name == "auto") targets = detected_targets();
  for (const IsaName& isa : kIsas)
    if (name == isa.name) targets = isa.target & detected_targets();
  if (targets == 0) return false;
  hwy::GetChosenTarget().Update(targets);
  environment_is_wrong.store(false, std::memory_order_relaxed);
  return true;
}

const char* environment() {
  const char* name = std::getenv("HEADWISE_ISA");
  return name == nullptr || *name == '\0' ? "auto" : name;
}

// Before main, so that no call pays for it and the choice holds for every thread.
const bool chosen_from_environment = [] {
  if (choose(environment())) return true;
  choose("auto");
  environment_is_wrong.store(true);
  return false;
}();

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const IsaName& isa : kIsas)
    if ((isa.target & detected_targets()) != 0) names.emplace_back(isa.name);
  return names;
}

std::string isa() {
  kernels::require_valid_isa();
  const std::size_t index = hwy::GetChosenTarget().GetIndex();
  for (const IsaName& isa : kIsas) {
    if ((isa.target & HWY_TARGETS) == 0) continue;
    hwy::ChosenTarget probe;
    probe.Update(isa.target);
    if (probe.GetIndex() == index) return isa.name;
  }
  return "scalar";
}

void set_isa(std::string_view name) {
  if (!choose(name)) core::throw_argument("isa", quoted(name), "one of " + choices());
}

void kernels::require_valid_isa() {
  if (environment_is_wrong.load(std::memory_order_relaxed))
    core::throw_argument("HEADWISE_ISA", quoted(environment()), "one of " + choices());
}

}  // namespace headwise
