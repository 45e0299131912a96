#include "cli/verify.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/verify_gradients.h"
#include "cli/verify_kernels.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "verify", "Checks every kernel on this CPU against its definition",
    "Runs every kernel on every instruction set that this CPU has, in all four dtypes, and\n"
    "compares the results with the definition computed in double. Shows the largest error\n"
    "relative to the terms that were summed, and the bound that follows from their number\n"
    "and dtype. Also checks that f32 and f64 results have the same bits on instruction sets\n"
    "with fused multiply-add. Exits 1 when a bound is broken.\n"
    "With --gradients: the gradients of attention and of the module, for every option,\n"
    "against central differences of the forward call in f64, on the best instruction set.",
    "  headwise verify\n"
    "  headwise verify --gradients\n"
    "  headwise verify --isa avx2 --seed 7 --json"};

struct VerifyOptions {
  RuntimeOptions runtime;
  std::uint64_t seed = 0;
  bool gradients = false;
  bool json = false;
};

// Restores the instruction set and the kernel that the caller had chosen.
class KeepChoices {
 public:
  KeepChoices() : isa_(isa()), kernel_(kernel()) {}
  ~KeepChoices() {
    set_isa(isa_);
    set_kernel(kernel_);
  }
  KeepChoices(const KeepChoices&) = delete;
  KeepChoices& operator=(const KeepChoices&) = delete;

 private:
  std::string isa_, kernel_;
};

bool has_fma(const std::string& name) { return name != "sse4" && name != "scalar"; }

std::vector<KernelReport> verify_all(const std::vector<std::string>& isas,
                                     const std::vector<std::string>& kernels, std::uint64_t seed) {
  std::vector<KernelReport> reports;
  const auto add = [&](std::vector<KernelReport> more) {
    std::move(more.begin(), more.end(), std::back_inserter(reports));
  };
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const std::string& name : kernels) add(verify_attention(dtype, name, isas, seed));
    add(verify_matmul(dtype, isas, seed));
  }
  std::stable_sort(reports.begin(), reports.end(),
                   [](const auto& a, const auto& b) { return a.kernel < b.kernel; });
  return reports;
}

// Whether instruction sets with fused multiply-add agree to the bit, where that is promised.
bool same_bits(const std::vector<KernelReport>& reports) {
  for (const KernelReport& a : reports)
    for (const KernelReport& b : reports)
      if (a.kernel == b.kernel && a.dtype == b.dtype && size_of(a.dtype) > 2 && has_fma(a.isa) &&
          has_fma(b.isa) && a.bytes != b.bytes)
        return false;
  return true;
}

void print_text(const std::vector<KernelReport>& reports, bool bits, bool ok, std::ostream& out) {
  Table table({"kernel", "isa", "dtype", ">cases", ">largest error", ">bound", "ok"});
  for (const KernelReport& report : reports)
    table.add({report.kernel, report.isa, std::string(name_of(report.dtype)),
               std::to_string(report.tally.n_cases), format(report.tally.error, "%.1e"),
               format(report.tally.bound, "%.1e"), report.tally.ok ? "yes" : "NO"});
  table.print(out);
  out << "\nf32 and f64: " << (bits ? "the same bits" : "DIFFERENT bits")
      << " on instruction sets with fused multiply-add\n"
      << (ok ? "All kernels are within their bounds.\n" : "A check FAILED.\n");
}

void print_as_json(const std::vector<KernelReport>& reports, bool bits, bool ok,
                   std::ostream& out) {
  auto kernels = nlohmann::ordered_json::array();
  for (const KernelReport& report : reports)
    kernels.push_back({{"kernel", report.kernel},
                       {"isa", report.isa},
                       {"dtype", name_of(report.dtype)},
                       {"cases", report.tally.n_cases},
                       {"largest_error", report.tally.error},
                       {"bound", report.tally.bound},
                       {"ok", report.tally.ok}});
  print_json(out, {{"kernels", kernels}, {"same_bits", bits}, {"ok", ok}});
}

// A row for each value of `key`, in the order of their first appearance.
void print_gradients(const std::vector<GradientReport>& reports,
                     std::string GradientReport::*const key, std::ostream& out) {
  struct Row {
    std::string call, name;
    std::size_t n = 0;
    double error = 0;
  };
  std::vector<Row> rows;
  for (const GradientReport& report : reports) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) {
      return r.call == report.call && r.name == report.*key;
    });
    if (row == rows.end()) row = rows.insert(row, {report.call, report.*key});
    row->n += report.n_elements;
    if (!(report.error <= row->error)) row->error = report.error;
  }
  const bool by_option = key == &GradientReport::option;
  Table table({"", by_option ? "option" : "gradient of", ">elements", ">largest error", "ok"});
  for (const Row& row : rows)
    table.add({row.call, row.name, std::to_string(row.n), format(row.error, "%.1e"),
               row.error <= kGradientBound ? "yes" : "NO"});
  table.print(out);
}

int verify_all_gradients(const VerifyOptions& options, std::ostream& out) {
  const std::vector<GradientReport> reports = verify_gradients(options.seed);
  const bool ok = std::all_of(reports.begin(), reports.end(),
                              [](const GradientReport& r) { return r.error <= kGradientBound; });
  if (options.json) {
    auto rows = nlohmann::ordered_json::array();
    for (const GradientReport& r : reports)
      rows.push_back({{"call", r.call},
                      {"option", r.option},
                      {"gradient", r.gradient},
                      {"elements", r.n_elements},
                      {"largest_error", r.error}});
    print_json(out, {{"gradients", rows}, {"bound", kGradientBound}, {"ok", ok}});
  } else {
    print_gradients(reports, &GradientReport::option, out);
    out << '\n';
    print_gradients(reports, &GradientReport::gradient, out);
    out << '\n'
        << (ok ? "All gradients are within " : "A check FAILED: the bound is ")
        << format(kGradientBound, "%.0e") << " of their largest element, or of 1.\n";
  }
  return ok ? kSuccess : kCheckFailed;
}

int verify(const VerifyOptions& options, std::ostream& out) {
  const KeepChoices keep;
  apply(options.runtime);
  if (options.gradients) return verify_all_gradients(options, out);
  const auto isas =
      options.runtime.isa.empty() ? available_isas() : std::vector<std::string>{isa()};
  const auto kernels = options.runtime.kernel.empty() || options.runtime.kernel == "auto"
                           ? available_kernels()
                           : std::vector<std::string>{options.runtime.kernel};
  const std::vector<KernelReport> reports = verify_all(isas, kernels, options.seed);
  const bool bits = same_bits(reports);
  const bool ok = bits && std::all_of(reports.begin(), reports.end(),
                                      [](const KernelReport& r) { return r.tally.ok; });
  if (options.json)
    print_as_json(reports, bits, ok, out);
  else
    print_text(reports, bits, ok, out);
  return ok ? kSuccess : kCheckFailed;
}

}  // namespace

void add_verify(CLI::App& program, Action& action) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* verb = add_verb(program, kText);
  add_seed_option(*verb, options->seed);
  verb->add_flag("--gradients", options->gradients,
                 "Check gradients, against central differences in f64");
  verb->add_flag("--json", options->json, "Print JSON");
  add_runtime_options(*verb, options->runtime);
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return verify(*options, out); };
  });
}

}  // namespace headwise::cli
