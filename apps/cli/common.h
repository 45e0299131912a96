// What the verbs share: exit codes, kinds of failure, options, tables and JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/dtype.h"
#include "headwise/error.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace headwise::cli {

// What the program tells its caller; listed in --help and docs/cli.md.
enum ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,    // verify found an error above its bound, or a lesson's check failed
  kUsageError = 2,     // the command line itself is wrong
  kInputError = 3,     // a file or an input cannot be read, used or written
  kInternalError = 4,  // out of memory, or a fault of headwise
  kOutputError = 5,    // standard output could not be written
};

// A command line that the parser takes but that makes no sense.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// For library calls whose every argument was on the command line.
template <typename F>
auto from_command_line(F&& call) {
  try {
    return call();
  } catch (const ArgumentError& e) {
    throw UsageError(e.what());
  }
}

// What the chosen verb will do. Parsing fills it and it runs afterwards, so that a failure while
// parsing is never taken for one while running.
using Action = std::function<int(std::ostream& out)>;

struct VerbText {
  const char* name;
  const char* summary;   // one line, shown in the list of verbs
  const char* purpose;   // one paragraph, lines of at most 80 columns
  const char* examples;  // commands that work, each line indented by two blanks
};
CLI::App* add_verb(CLI::App& program, const VerbText& text);

// For CLI::Option::transform: decimal digits within [low, high]. CLI11 alone reads "-1" as a huge
// number and "010" as 8.
CLI::Validator whole_number(std::uint64_t low, std::uint64_t high);

// For CLI::Option::check. An unset shell variable gives "", which must not count as "not given".
CLI::Validator file_name();

// For CLI::Option::check: f32, f64, bf16 or f16.
CLI::Validator dtype_name();
DType dtype_from_name(std::string_view name);  // of those

void add_seed_option(CLI::App& verb, std::uint64_t& seed);  // --seed, as torch.manual_seed's

struct RuntimeOptions {
  int threads = 0;     // 0: as the library chooses
  std::string isa;     // "": as the library chooses
  std::string kernel;  // "": as the library chooses
};
void add_runtime_options(CLI::App& verb, RuntimeOptions& options);  // --threads, --isa, --kernel
void apply(const RuntimeOptions& options);

// Columns that a person reads: text left-aligned, and right-aligned under a header that begins
// with '>'. Cells are shown as they are: outside text has to pass through printable() first.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);  // as many cells as the header
  void print(std::ostream& out, std::string_view indent = "  ") const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the header is the first
};

std::size_t display_width(std::string_view utf8);  // in terminal columns
std::string format(double value, const char* printf_format = "%.6g");
std::string grouped(std::uint64_t value);  // 1 048 576

// JSON in ASCII whatever names a file holds; NaN and infinities become null.
std::string json_line(const nlohmann::ordered_json& json);
void print_json(std::ostream& out, const nlohmann::ordered_json& json);

}  // namespace headwise::cli
