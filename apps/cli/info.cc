#include "cli/info.h"

#include <fstream>
#include <memory>
#include <optional>

#include <unistd.h>

#include "CLI/CLI.hpp"
#include "cli/shape_options.h"
#include "headwise/io.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"
#include "headwise/version.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "info", "Shows this build, this CPU and what is in use",
    "Shows the version, the instruction sets and attention kernels that this CPU has and\n"
    "those in use, the threads, the caches and the compiler. With --explain, which kernel\n"
    "would compute attention of that shape and why, and its work, bytes and working memory.",
    "  headwise info\n"
    "  headwise info --explain 1,32,1,8192,128 --kv-heads 8 --dtype bf16\n"
    "  HEADWISE_ISA=avx2 headwise info --json"};

struct InfoOptions {
  RuntimeOptions runtime;
  ShapeOptions shape;  // empty text: nothing to explain
  bool json = false;
};

#if defined(__clang__)
constexpr const char* kCompiler = __VERSION__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

struct Cache {
  const char* name;
  long bytes;  // 0: the system does not say
};

std::vector<Cache> caches() {
#ifdef _SC_LEVEL1_DCACHE_SIZE
  return {{"L1 data", ::sysconf(_SC_LEVEL1_DCACHE_SIZE)},
          {"L2", ::sysconf(_SC_LEVEL2_CACHE_SIZE)},
          {"L3", ::sysconf(_SC_LEVEL3_CACHE_SIZE)}};
#else
  return {};
#endif
}

nlohmann::ordered_json info_json() {
  nlohmann::ordered_json json;
  json["version"] = HEADWISE_VERSION;
  json["isa"] = isa();
  json["available_isas"] = available_isas();
  json["kernel"] = kernel();
  json["available_kernels"] = available_kernels();
  json["threads"] = get_num_threads();
  json["cpu"] = cpu_name();
  json["caches"] = nlohmann::ordered_json::object();
  for (const Cache& cache : caches())
    if (cache.bytes > 0) json["caches"][cache.name] = cache.bytes;
  json["compiler"] = kCompiler;
  return json;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void info_text(std::ostream& out) {
  std::string sizes;
  for (const Cache& cache : caches())
    if (cache.bytes > 0)
      sizes += (sizes.empty() ? "" : ", ") + std::string(cache.name) + " " +
               std::to_string(cache.bytes / 1024) + " KiB";
  out << "version           " << HEADWISE_VERSION << '\n'
      << "instruction set   " << isa() << " (available: " << listed(available_isas()) << ")\n"
      << "attention kernel  " << kernel() << " (available: " << listed(available_kernels()) << ")\n"
      << "threads           " << get_num_threads() << '\n'
      << "CPU               " << printable(cpu_name()) << '\n'
      << "caches            " << (sizes.empty() ? "unknown" : sizes) << '\n'
      << "compiler          " << kCompiler << '\n';
}

AttentionPlan explain(const ShapeOptions& options) {
  return from_command_line([&] {
    const AttentionShape s = attention_shape(options);
    return explain_attention({nullptr, s.dtype, s.q}, {nullptr, s.dtype, s.k},
                             {nullptr, s.dtype, s.v}, s.options);
  });
}

nlohmann::ordered_json plan_json(const AttentionPlan& plan) {
  return {{"kernel", plan.kernel},
          {"reason", plan.reason},
          {"tasks", plan.n_tasks},
          {"threads", plan.n_threads},
          {"flops", plan.flops},
          {"bytes", plan.bytes},
          {"scratch_bytes", plan.scratch_bytes}};
}

void plan_text(const AttentionPlan& plan, std::ostream& out) {
  out << "kernel            " << plan.kernel << ": " << plan.reason << '\n'
      << "tasks             " << plan.n_tasks << " on " << plan.n_threads
      << (plan.n_threads == 1 ? " thread\n" : " threads\n") << "work              "
      << format(plan.flops, "%.4g") << " FLOP, " << format(plan.bytes, "%.4g")
      << " bytes in and out\n"
      << "working memory    " << grouped(plan.scratch_bytes) << " bytes\n";
}

int info(const InfoOptions& options, std::ostream& out) {
  apply(options.runtime);
  std::optional<AttentionPlan> plan;
  if (!options.shape.text.empty()) plan = explain(options.shape);
  if (options.json) {
    nlohmann::ordered_json json = info_json();
    if (plan) json["explain"] = plan_json(*plan);
    print_json(out, json);
    return kSuccess;
  }
  info_text(out);
  if (plan) plan_text(*plan, out << '\n');
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& program, Action& action) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* verb = add_verb(program, kText);
  add_shape_options(*verb, "--explain", "Also show what a call of this shape would do",
                    options->shape);
  verb->add_flag("--json", options->json, "Print JSON");
  add_runtime_options(*verb, options->runtime);
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return info(*options, out); };
  });
}

}  // namespace headwise::cli
