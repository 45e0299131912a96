#include "cli/bench.h"

#include <algorithm>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/bench_call.h"
#include "cli/shape_options.h"
#include "headwise/runtime.h"
#include "machine_limits.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "bench", "Times attention of one shape, after checking it",
    "Runs scaled_dot_product_attention on random tensors, compares up to 64 rows with the\n"
    "definition in double, and then repeats it. Shows the best and the median time and the\n"
    "spread of the middle half, the speed in useful operations, and how much that is of\n"
    "what this machine reaches in multiply-adds and in reads from memory, measured right\n"
    "after it. Run it while nothing else computes. Exits 1 when the check fails.",
    "  headwise bench --shape 1,8,256,256,64 --causal\n"
    "  headwise bench --shape 1,32,1,1024,128 --kv-heads 8 --dtype bf16 --seconds 0.5 --json"};

constexpr double kMaxSeconds = 3600;

struct BenchOptions {
  RuntimeOptions runtime;
  ShapeOptions shape;
  std::uint64_t seed = 0;
  double seconds = 1;
  bool no_limits = false, json = false;
};

// Operations and bytes a second that the machine reaches; 0: unknown or not asked for.
struct Limits {
  double flops = 0, bytes = 0;
};

struct BenchReport {
  AttentionPlan plan;
  Tally check;
  BenchTimes times;
  Limits limits;

  double flops_per_second() const { return plan.flops / times.best(); }
  double bytes_per_second() const { return plan.bytes / times.best(); }
};

Limits measure_limits(DType dtype) {
  const int n = get_num_threads();
  Limits limits{bench::fma_flops(n), bench::read_bytes_per_second(n)};
  if (dtype == DType::f64) limits.flops /= 2;  // half the lanes
  if (dtype == DType::bf16)
    limits.flops = std::max({limits.flops, bench::bf16_dot_flops(n), bench::amx_bf16_flops(n)});
  return limits;
}

std::string shape_words(const ShapeOptions& shape) {
  std::string words = shape.text + " " + shape.dtype;
  if (shape.kv_heads > 0) words += ", " + std::to_string(shape.kv_heads) + " KV heads";
  if (shape.causal) words += shape.bottom_right ? ", causal to the bottom right" : ", causal";
  return words;
}

std::string seconds_words(double seconds) {
  if (seconds >= 1) return format(seconds, "%.3g s");
  if (seconds >= 1e-3) return format(seconds * 1e3, "%.3g ms");
  return format(seconds * 1e6, "%.3g us");
}

std::string share_words(double rate, double limit, const char* unit, const char* what) {
  if (limit <= 0) return {};
  return ", " + format(100 * rate / limit, "%.0f") + " % of the " + format(limit / 1e9, "%.4g") +
         unit + what;
}

void print_text(const BenchOptions& options, const BenchReport& r, std::ostream& out) {
  out << "shape     " << shape_words(options.shape) << '\n'
      << "kernel    " << r.plan.kernel << ": " << r.plan.reason << '\n'
      << "runs on   " << isa() << ", " << r.plan.n_threads
      << (r.plan.n_threads == 1 ? " thread\n" : " threads\n") << "check     " << r.check.n_cases
      << " rows, largest error " << format(r.check.error, "%.1e") << ", bound "
      << format(r.check.bound, "%.1e") << (r.check.ok ? "\n" : ": FAILED, not timed\n");
  if (!r.check.ok) return;
  out << "time      " << seconds_words(r.times.best()) << " best, "
      << seconds_words(r.times.median()) << " median, spread "
      << format(100 * r.times.spread(), "%.1f") << " %, " << r.times.samples.size()
      << " samples of " << r.times.calls_per_sample
      << (r.times.calls_per_sample == 1 ? " call\n" : " calls\n") << "speed     "
      << format(r.flops_per_second() / 1e9, "%.4g") << " GFLOP/s"
      << share_words(r.flops_per_second(), r.limits.flops, " GFLOP/s", " that arithmetic reaches")
      << "\nmemory    " << format(r.bytes_per_second() / 1e9, "%.4g") << " GB/s"
      << share_words(r.bytes_per_second(), r.limits.bytes, " GB/s", " that reads reach") << '\n';
}

nlohmann::ordered_json share_json(double rate, double limit) {
  return limit > 0 ? nlohmann::ordered_json(rate / limit) : nlohmann::ordered_json();
}

void print_as_json(const BenchOptions& options, const BenchReport& r, std::ostream& out) {
  nlohmann::ordered_json json = {{"shape", options.shape.text},
                                 {"kv_heads", options.shape.kv_heads},
                                 {"dtype", options.shape.dtype},
                                 {"causal", options.shape.causal},
                                 {"bottom_right", options.shape.bottom_right},
                                 {"kernel", r.plan.kernel},
                                 {"isa", isa()},
                                 {"threads", r.plan.n_threads},
                                 {"flops", r.plan.flops},
                                 {"bytes", r.plan.bytes},
                                 {"checked_rows", r.check.n_cases},
                                 {"largest_error", r.check.error},
                                 {"bound", r.check.bound},
                                 {"ok", r.check.ok}};
  if (r.check.ok) {
    json["best_seconds"] = r.times.best();
    json["median_seconds"] = r.times.median();
    json["spread"] = r.times.spread();
    json["samples"] = r.times.samples.size();
    json["calls_per_sample"] = r.times.calls_per_sample;
    json["flops_per_second"] = r.flops_per_second();
    json["bytes_per_second"] = r.bytes_per_second();
    json["share_of_flops"] = share_json(r.flops_per_second(), r.limits.flops);
    json["share_of_reads"] = share_json(r.bytes_per_second(), r.limits.bytes);
  }
  print_json(out, json);
}

int bench_verb(const BenchOptions& options, std::ostream& out) {
  if (!(options.seconds >= 0 && options.seconds <= kMaxSeconds))  // false for NaN too
    throw UsageError("--seconds: found " + format(options.seconds) +
                     ", expected a number from 0 to " + format(kMaxSeconds));
  apply(options.runtime);
  const AttentionShape shape = attention_shape(options.shape);
  BenchCall call(shape, options.seed);
  call.run();
  BenchReport report{call.plan(), call.check(), {}, {}};
  if (report.check.ok) {
    report.times = call.time(options.seconds);
    if (!options.no_limits) report.limits = measure_limits(shape.dtype);
  }
  if (options.json)
    print_as_json(options, report, out);
  else
    print_text(options, report, out);
  return report.check.ok ? kSuccess : kCheckFailed;
}

}  // namespace

void add_bench(CLI::App& program, Action& action) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* verb = add_verb(program, kText);
  add_shape_options(*verb, "--shape", "Sizes of the call", options->shape)->required();
  verb->add_option("--seconds", options->seconds, "How long to repeat it (1)")->type_name("S");
  verb->add_flag("--no-limits", options->no_limits, "Do not measure what the machine reaches");
  add_seed_option(*verb, options->seed);
  verb->add_flag("--json", options->json, "Print JSON");
  add_runtime_options(*verb, options->runtime);
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return bench_verb(*options, out); };
  });
}

}  // namespace headwise::cli
