// parity FILE... [--isa NAME|all] [--case ID]: runs every case of files that generate.py wrote, and
// prints the largest error of each dtype and kind in units of what is allowed. Exits with 1 when a
// case is past it, gives another shape or throws.
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "headwise/io.h"
#include "headwise/runtime.h"
#include "parity/run.h"

namespace headwise::parity {
namespace {

struct Arguments {
  std::vector<std::string> files;
  std::string isa = "auto", only;
};

struct Row {
  std::size_t cases = 0, torch_checked = 0;
  Difference difference;
  std::string worst_case = "-";
};
using Table = std::map<std::pair<std::string, std::string>, Row>;  // by kind and dtype

Difference run(const Case& c) {
  const std::string kind = c.text("kind");
  if (kind == "sdpa") return run_sdpa(c);
  if (kind == "module") return run_module(c);
  if (kind == "init") return run_init(c);
  return run_draws(c);
}

// True when the case is within what is allowed.
bool add_case(const Case& c, Table& table) {
  Row& row = table[{c.text("kind"), c.text("dtype")}];
  ++row.cases;
  row.torch_checked += c.flag("torch") ? 1 : 0;
  try {
    const Difference d = run(c);
    if (d.units > row.difference.units) row.worst_case = c.id();
    row.difference.add(d);
    if (d.units <= 1.0) return true;
    std::printf("FAIL %s %.3g times what is allowed, %s\n     %s\n", c.id().c_str(), d.units,
                d.worst.c_str(), c.line().c_str());
  } catch (const std::exception& e) {
    std::printf("FAIL %s %s\n     %s\n", c.id().c_str(), e.what(), c.line().c_str());
  }
  return false;
}

const char* allowed(const std::string& kind, const std::string& dtype) {
  if (kind == "init" || kind == "draws") return "same bits, normal draws 2 ulp";
  if (dtype == "f32") return "2e-6 of the row's scale";
  return dtype == "f64" ? "1e-14 of the row's scale" : "1 ulp of the rounded double";
}

void print(const Table& table) {
  std::printf("%-7s %-5s %6s %11s %10s %14s  %-30s %s\n", "kind", "dtype", "cases", "torch's own",
              "elements", "largest error", "in units of", "worst case");
  std::size_t near_zero = 0;
  for (const auto& [key, row] : table) {
    std::printf("%-7s %-5s %6zu %11zu %10zu %14.3f  %-30s %s\n", key.first.c_str(),
                key.second.c_str(), row.cases, row.torch_checked, row.difference.elements,
                row.difference.units, allowed(key.first, key.second), row.worst_case.c_str());
    near_zero += row.difference.near_zero;
  }
  std::printf(
      "bf16 by kernels that round weights: 2^-8 of the row's scale more; modules on AMX: 2^-6\n");
  std::printf("16-bit elements near zero, judged by 2e-6 of the row's scale instead: %zu\n",
              near_zero);
}

struct Totals {
  std::size_t passed = 0, failed = 0;
};

void run_file(const TensorFile& file, const std::string& only, Table& table, Totals& totals) {
  for (const auto& [id, options] : file.metadata()) {
    if (id == "format" || (!only.empty() && id != only)) continue;
    ++(add_case(Case(file, id, options), table) ? totals.passed : totals.failed);
  }
}

int main_program(const Arguments& arguments) {
  std::vector<std::string> isas = {arguments.isa};
  if (arguments.isa == "all") isas = available_isas();
  Totals totals;
  for (const std::string& name : isas) {
    set_isa(name);
    Table table;
    for (const std::string& path : arguments.files)
      run_file(TensorFile::open(path), arguments.only, table, totals);
    std::printf("isa %s\n", isa().c_str());
    print(table);
  }
  std::printf("%zu passed, %zu failed\n", totals.passed, totals.failed);
  return totals.failed == 0 && totals.passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace headwise::parity

int main(int argc, char** argv) {
  headwise::parity::Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
      arguments.isa = argv[++i];
    else if (std::strcmp(argv[i], "--case") == 0 && i + 1 < argc)
      arguments.only = argv[++i];
    else
      arguments.files.emplace_back(argv[i]);
  }
  if (arguments.files.empty()) {
    std::fprintf(stderr, "usage: parity FILE... [--isa NAME|all] [--case ID]\n");
    return 2;
  }
  try {
    return headwise::parity::main_program(arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "parity: %s\n", e.what());
    return 1;
  }
}
