// Instruction sets by name: Highway's targets behind the public names of runtime.h.
#include <cstdlib>
#include <mutex>
#include <string>
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
    {HWY_NEON, "neon"},   {HWY_WASM, "wasm"}, {HWY_EMU128, "scalar"},
};

std::int64_t detected_targets() {
  static const std::int64_t targets = [] {
    hwy::SetSupportedTargetsForTest(0);
    return (hwy::SupportedTargets() | HWY_EMU128) & HWY_TARGETS;
  }();
  return targets;
}

std::string choices() {
  std::string text = "auto";
  for (const std::string& name : available_isas()) text += ", " + name;
  return text;
}

void choose(std::int64_t targets) { hwy::GetChosenTarget().Update(targets); }

// Runs when the library is loaded: a wrong name in the environment is reported by the first call
// that asks for the instruction set, never from a static initialiser.
const bool chosen_from_environment = [] {
  const char* wanted = std::getenv("HEADWISE_ISA");
  choose(detected_targets());
  if (wanted != nullptr)
    for (const IsaName& isa : kIsas)
      if (std::string_view(wanted) == isa.name && (isa.target & detected_targets()) != 0)
        choose(isa.target);
  return true;
}();

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const IsaName& isa : kIsas)
    if ((isa.target & detected_targets()) != 0) names.emplace_back(isa.name);
  return names;
}

std::string isa() {
  static_cast<void>(chosen_from_environment);
  const std::size_t index = hwy::GetChosenTarget().GetIndex();
  for (const IsaName& isa : kIsas) {
    hwy::ChosenTarget probe;
    probe.Update(isa.target);
    if (probe.GetIndex() == index) return isa.name;
  }
  return "scalar";
}

void set_isa(std::string_view name) {
  if (name == "auto") return choose(detected_targets());
  for (const IsaName& isa : kIsas)
    if (name == isa.name && (isa.target & detected_targets()) != 0) return choose(isa.target);
  core::throw_argument("isa", "\"" + std::string(name) + "\"", "one of " + choices());
}

}  // namespace headwise
