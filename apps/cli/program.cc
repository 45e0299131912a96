#include "cli/program.h"

#include <algorithm>
#include <exception>
#include <ios>
#include <memory>
#include <new>
#include <stdexcept>

#include "CLI/CLI.hpp"
#include "cli/bench.h"
#include "cli/common.h"
#include "cli/info.h"
#include "cli/inspect.h"
#include "cli/lesson/lesson.h"
#include "cli/output.h"
#include "cli/run.h"
#include "cli/see.h"
#include "cli/verify.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "headwise/version.h"

namespace headwise::cli {
namespace {

constexpr const char* kPurpose =
    "headwise computes multi-head attention on CPUs and shows what it does:\n"
    "  softmax(Q K^T / sqrt(d_head)) V, as PyTorch computes it.\n";

constexpr const char* kFooter =
    "Every verb explains itself: headwise VERB --help\n"
    "\nExit codes:\n"
    "  0  done\n"
    "  1  a check failed: an error above its bound\n"
    "  2  the command line is wrong\n"
    "  3  a file or an input cannot be read, used or written\n"
    "  4  out of memory, or a fault of headwise\n"
    "  5  standard output could not be written\n"
    "An error is one line on standard error.\n";

// CLI11's help, but with one line for each verb.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    column_width(26);
    label("SUBCOMMAND", "VERB");
  }
  // Without the names of all options that one excludes or needs.
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    return (type.empty() ? "" : " " + type) + (option->get_required() ? " (required)" : "");
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    const std::string description = verb->get_description();
    std::string line = "  " + verb->get_name();
    line.resize(std::max(line.size() + 1, get_column_width()), ' ');
    return line + description.substr(0, description.find('\n')) + '\n';
  }
};

// In the order of --help.
void add_verbs(CLI::App& program, Action& action) {
  add_see(program, action);
  add_run(program, action);
  add_inspect(program, action);
  add_lesson(program, action);
  add_verify(program, action);
  add_bench(program, action);
  add_info(program, action);
}

// CLI11 would name an unknown verb, or an unknown verb of a verb, only as an unexpected argument.
void check_verbs(const CLI::App& program, const std::vector<std::string>& args) {
  const CLI::App* parent = &program;
  for (const std::string& arg : args) {
    const auto verbs = parent->get_subcommands([](const CLI::App*) { return true; });
    if (verbs.empty() || arg.starts_with('-')) return;
    const CLI::App* found = nullptr;
    std::string names;
    for (const CLI::App* verb : verbs) {
      if (verb->get_name() == arg) found = verb;
      names += (names.empty() ? "" : ", ") + verb->get_name();
    }
    if (found == nullptr)
      throw UsageError((parent == &program ? "verb" : parent->get_name()) + ": found \"" + arg +
                       "\", expected one of " + names);
    parent = found;
  }
  if (args.empty()) throw UsageError("found no verb, expected one; headwise --help lists them");
}

int parse_and_run(const std::vector<std::string>& args, std::ostream& out) {
  CLI::App program(kPurpose, "headwise");
  program.formatter(std::make_shared<HelpFormatter>());  // verbs inherit it
  program.footer(kFooter);
  program.set_version_flag("--version", "headwise " HEADWISE_VERSION, "Print the version and exit");
  Action action;
  program.require_subcommand(0, 1);
  add_verbs(program, action);
  check_verbs(program, args);
  try {
    program.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 pops the last
  } catch (const CLI::CallForHelp&) {
    out << program.help();
  } catch (const CLI::CallForAllHelp&) {
    out << program.help("", CLI::AppFormatMode::All);
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << '\n';
  }
  const int code = action ? action(out) : kSuccess;
  out.flush();
  return code;
}

// One line of at most 500 letters, whatever was on the command line or in a file.
int report(std::ostream& err, int code, const std::string& message) {
  err << printable("headwise: " + message, 490) << '\n' << std::flush;
  return code;
}

// The exit code for the exception being handled. Messages of exceptions that are not ours name C++
// functions, so they are not shown.
int report_current_exception(std::ostream& err) {
  try {
    throw;
  } catch (const UsageError& e) {
    return report(err, kUsageError, e.what());
  } catch (const CLI::ParseError& e) {
    return report(err, kUsageError, e.what());
  } catch (const OutputError& e) {
    return e.reader_left() ? kOutputError : report(err, kOutputError, e.what());
  } catch (const std::ios_base::failure&) {
    return report(err, kOutputError, "standard output could not be written");
  } catch (const ArgumentError& e) {
    return report(err, kInputError, e.what());
  } catch (const FileError& e) {
    return report(err, kInputError, e.what());
  } catch (const std::length_error&) {
    return report(err, kInputError, "a size is too large for this machine");
  } catch (const std::bad_alloc&) {
    return report(err, kInternalError, "not enough memory");
  } catch (...) {
    return report(err, kInternalError, "an error inside headwise; please report the command");
  }
}

}  // namespace

int run_program(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  try {
    return parse_and_run(args, out);
  } catch (...) {
    return report_current_exception(err);
  }
}

}  // namespace headwise::cli
