#include "cli/info.h"

#include <fstream>
#include <memory>

#include <unistd.h>

#include "CLI/CLI.hpp"
#include "headwise/io.h"
#include "headwise/runtime.h"
#include "headwise/version.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "info", "Shows this build, this CPU and what is in use",
    "Shows the version, the instruction sets that this CPU has and the one in use, the\n"
    "threads, the caches and the compiler. Results never depend on the number of threads.",
    "  headwise info\n"
    "  HEADWISE_ISA=avx2 headwise info --json"};

struct InfoOptions {
  RuntimeOptions runtime;
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
  json["threads"] = get_num_threads();
  json["cpu"] = cpu_name();
  json["caches"] = nlohmann::ordered_json::object();
  for (const Cache& cache : caches())
    if (cache.bytes > 0) json["caches"][cache.name] = cache.bytes;
  json["compiler"] = kCompiler;
  return json;
}

void info_text(std::ostream& out) {
  std::string isas;
  for (const std::string& name : available_isas()) isas += (isas.empty() ? "" : ", ") + name;
  std::string sizes;
  for (const Cache& cache : caches())
    if (cache.bytes > 0)
      sizes += (sizes.empty() ? "" : ", ") + std::string(cache.name) + " " +
               std::to_string(cache.bytes / 1024) + " KiB";
  out << "version           " << HEADWISE_VERSION << '\n'
      << "instruction set   " << isa() << " (available: " << isas << ")\n"
      << "threads           " << get_num_threads() << '\n'
      << "CPU               " << printable(cpu_name()) << '\n'
      << "caches            " << (sizes.empty() ? "unknown" : sizes) << '\n'
      << "compiler          " << kCompiler << '\n';
}

int info(const InfoOptions& options, std::ostream& out) {
  apply(options.runtime);
  if (options.json)
    print_json(out, info_json());
  else
    info_text(out);
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& program, Action& action) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* verb = add_verb(program, kText);
  verb->add_flag("--json", options->json, "Print JSON");
  add_runtime_options(*verb, options->runtime);
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return info(*options, out); };
  });
}

}  // namespace headwise::cli
