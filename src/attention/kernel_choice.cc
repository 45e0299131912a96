#include "attention/kernel_choice.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "headwise/plan.h"
#include "kernels/bf16/amx_forward.h"
#include "kernels/bf16/dot_forward.h"
#include "kernels/flash_forward.h"

namespace headwise {
namespace {

using attention::Kernel;

struct KernelEntry {
  Kernel kernel;
  const char* name;
  bool (*on_this_cpu)();
  bool (*can_compute)(const attention::Problem&);
  attention::BlockKernel block;
};

bool always() { return true; }
bool any_problem(const attention::Problem&) { return true; }

constexpr KernelEntry kKernels[] = {
    {Kernel::flash,
     "flash",
     always,
     any_problem,
     {kernels::flash_forward, kernels::flash_forward_scratch}},
    {Kernel::decode, "decode", always, any_problem, {}},
    {Kernel::bf16_amx,
     "bf16_amx",
     kernels::amx_on_cpu,
     [](const attention::Problem& p) {
       return p.dtype == DType::bf16 && !(p.dropout.p > 0) && kernels::bf16_amx_available();
     },
     {kernels::bf16_amx_forward, kernels::bf16_amx_scratch}},
    {Kernel::bf16_dot,
     "bf16_dot",
     kernels::bf16_dot_on_cpu,
     [](const attention::Problem& p) {
       return p.dtype == DType::bf16 && kernels::bf16_dot_available();
     },
     {kernels::bf16_dot_forward, kernels::bf16_dot_scratch}},
};

const KernelEntry& entry_of(Kernel kernel) {
  return *std::find_if(std::begin(kKernels), std::end(kKernels),
                       [=](const KernelEntry& entry) { return entry.kernel == kernel; });
}

constexpr int kAuto = -1, kUnknown = -2;
std::atomic<int> asked_for{kAuto};  // an index into kKernels, or one of the above

int index_of(std::string_view name) {
  if (name == "auto") return kAuto;
  int i = 0;
  for (const KernelEntry& entry : kKernels) {
    if (name == entry.name && entry.on_this_cpu()) return i;
    ++i;
  }
  return kUnknown;
}

std::string environment() {
  const char* name = std::getenv("HEADWISE_KERNEL");
  return name == nullptr || *name == '\0' ? "auto" : name;
}

const bool chosen_from_environment = [] {
  asked_for.store(index_of(environment()));
  return true;
}();

[[noreturn]] void throw_unknown(const char* argument, std::string_view name) {
  std::string choices = "auto";
  for (const std::string& kernel : available_kernels()) choices.append(", ").append(kernel);
  std::string found = "\"";  // appended to: g++ 12 sees overlap in a sum of strings
  found.append(name.substr(0, 40)).append("\"");
  core::throw_argument(argument, found, "one of " + choices);
}

}  // namespace

namespace attention {

const char* name_of(Kernel kernel) { return entry_of(kernel).name; }
BlockKernel block_kernel(Kernel kernel) { return entry_of(kernel).block; }

namespace {

// Queries by the row, as the decode kernel takes them, cost each its share; by the vector they cost
// 16 whatever their number, but no sums across lanes. Measured on 2 cores with AVX-512 (AMD EPYC,
// 8 heads, f32, time of flash / decode for 4, 7 and 12 queries): 33 keys of d 32 1.4 1.0 0.7, of
// d 64 1.9 1.3 0.9, of d 128 2.5 1.8 1.1; 1024 keys of d 32 1.9 1.3 0.9, of d 128 3.0 1.9 1.2; 4
// queries of 16 keys of d 4 0.6.
bool by_the_row(const Problem& p, std::size_t n_queries) {
  constexpr std::size_t kMost = 12;
  return n_queries <= std::clamp<std::size_t>((p.d_head + p.d_v) / 16, 1, kMost) &&
         !(p.dropout.p > 0);
}

}  // namespace

std::size_t n_tail_queries(const Problem& p) {
  constexpr std::size_t kVector = 16;
  const std::size_t tail = p.T_q % kVector;
  const bool forced = asked_for.load(std::memory_order_relaxed) >= 0;
  return !forced && tail < p.T_q && by_the_row(p, tail) ? tail : 0;
}

KernelChoice choose_kernel(const Problem& p) {
  const int asked = asked_for.load(std::memory_order_relaxed);
  if (asked >= 0 && kKernels[asked].can_compute(p))
    return {kKernels[asked].kernel, "asked for by set_kernel or HEADWISE_KERNEL"};
  if (by_the_row(p, p.T_q))
    return {Kernel::decode, "few queries share each key: reading the keys is the work"};
  if (p.dtype == DType::bf16 && !(p.dropout.p > 0) && kernels::bf16_amx_available())
    return {Kernel::bf16_amx, "many queries; this CPU has AMX"};
  if (p.dtype == DType::bf16 && kernels::bf16_dot_available()) {
    if (kernels::bf16_dot_is_fast())
      return {Kernel::bf16_dot, "many queries; products of bf16 pairs are fast on this CPU"};
    return {Kernel::flash, "many queries; products of bf16 pairs are slow on this CPU"};
  }
  return {Kernel::flash, "many queries, or narrow heads: their products are the work"};
}

void require_valid_kernel() {
  if (asked_for.load(std::memory_order_relaxed) == kUnknown)
    throw_unknown("HEADWISE_KERNEL", environment());
}

}  // namespace attention

std::vector<std::string> available_kernels() {
  std::vector<std::string> names;
  for (const KernelEntry& entry : kKernels)
    if (entry.on_this_cpu()) names.emplace_back(entry.name);
  return names;
}

std::string kernel() {
  attention::require_valid_kernel();
  const int asked = asked_for.load(std::memory_order_relaxed);
  return asked < 0 ? "auto" : kKernels[asked].name;
}

void set_kernel(std::string_view name) {
  const int index = index_of(name);
  if (index == kUnknown) throw_unknown("kernel", name);
  asked_for.store(index);
}

}  // namespace headwise
