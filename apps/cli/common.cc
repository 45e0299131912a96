#include "cli/common.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

#include "CLI/CLI.hpp"
#include "headwise/io.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"
#include "nlohmann/json.hpp"
#include "utf8proc.h"

namespace headwise::cli {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

// "auto" or one of the names.
CLI::Validator one_of(std::vector<std::string> (*names)()) {
  const auto check = [names](const std::string& text) -> std::string {
    std::string choices = "auto";
    for (const std::string& name : names()) {
      if (text == name) return {};
      choices += ", " + name;
    }
    if (text == "auto") return {};
    return "found \"" + text + "\", expected one of " + choices;
  };
  return CLI::Validator(check, "");
}

}  // namespace

CLI::App* add_verb(CLI::App& program, const VerbText& text) {
  const std::string description = std::string(text.summary) + "\n\n" + text.purpose + "\n";
  CLI::App* verb = program.add_subcommand(text.name, description);
  verb->group("Verbs");
  verb->footer(std::string("Examples:\n") + text.examples);
  return verb;
}

CLI::Validator whole_number(std::uint64_t low, std::uint64_t high) {
  const std::string range = std::to_string(low) + " to " + std::to_string(high);
  const auto check = [=](std::string& text) -> std::string {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    const bool is_number = result.ec == std::errc{} && result.ptr == end && !text.empty();
    if (!is_number || value < low || value > high)
      return "found \"" + text + "\", expected a whole number from " + range;
    text = std::to_string(value);
    return {};
  };
  return CLI::Validator(check, "", "whole number");
}

CLI::Validator file_name() {
  const auto check = [](std::string& text) -> std::string {
    return text.empty() ? "found \"\", expected the name of a file" : "";
  };
  return CLI::Validator(check, "", "file name");
}

CLI::Validator dtype_name() {
  const auto check = [](const std::string& text) -> std::string {
    for (const DType dtype : kDTypes)
      if (text == name_of(dtype)) return {};
    return "found \"" + text + "\", expected f32, f64, bf16 or f16";
  };
  return CLI::Validator(check, "", "dtype");
}

DType dtype_from_name(std::string_view name) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes),
                       [&](DType dtype) { return name == name_of(dtype); });
}

void add_seed_option(CLI::App& verb, std::uint64_t& seed) {
  verb.add_option("--seed", seed, "What torch.manual_seed would be given (0)")
      ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->type_name("N");
}

void add_runtime_options(CLI::App& verb, RuntimeOptions& options) {
  verb.add_option("--threads", options.threads, "Threads to use (default: all usable cores)")
      ->transform(whole_number(1, 1024))
      ->type_name("N")
      ->group("Machine");
  verb.add_option("--isa", options.isa, "Instruction set to use (default: the best; see info)")
      ->type_name("NAME")
      ->check(one_of(available_isas))
      ->group("Machine");
  verb.add_option("--kernel", options.kernel,
                  "Attention kernel to use (default: by size; see info)")
      ->type_name("NAME")
      ->check(one_of(available_kernels))
      ->group("Machine");
}

void apply(const RuntimeOptions& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  if (!options.isa.empty()) set_isa(options.isa);
  if (!options.kernel.empty()) set_kernel(options.kernel);
}

Table::Table(std::vector<std::string> header) {
  for (std::string& cell : header) {
    right_.push_back(cell.starts_with('>'));
    if (right_.back()) cell.erase(0, 1);
  }
  rows_.push_back(std::move(header));
}

void Table::add(std::vector<std::string> row) {
  row.resize(right_.size());
  rows_.push_back(std::move(row));
}

void Table::print(std::ostream& out, std::string_view indent) const {
  std::vector<std::size_t> widths(right_.size(), 0);
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], display_width(row[i]));
  for (const auto& row : rows_) {
    std::string line(indent);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - display_width(row[i]), ' ');
      line += right_[i] ? padding + row[i] : row[i] + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

std::size_t display_width(std::string_view utf8) {
  std::size_t width = 0;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data());
  auto left = static_cast<utf8proc_ssize_t>(utf8.size());
  while (left > 0) {
    utf8proc_int32_t letter = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(at, left, &letter);
    width += n > 0 ? static_cast<std::size_t>(utf8proc_charwidth(letter)) : 1;
    at += n > 0 ? n : 1;
    left -= n > 0 ? n : 1;
  }
  return width;
}

std::string format(double value, const char* printf_format) {
  char text[64];
  std::snprintf(text, sizeof text, printf_format, value);
  return text;
}

std::string grouped(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t i = text.size(); i > 3;) text.insert(i -= 3, " ");
  return text;
}

std::string json_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

void print_json(std::ostream& out, const nlohmann::ordered_json& json) {
  out << json.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace headwise::cli
