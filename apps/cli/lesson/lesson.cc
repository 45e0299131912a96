#include "cli/lesson/lesson.h"

#include "CLI/CLI.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "lesson", "Explains attention with numbers that are computed in front of you",
    "Three short lessons. Each shows a formula, computes it with this library and with plain\n"
    "arithmetic, and compares the two. Change the sizes and seeds and run them again.",
    "  headwise lesson scale --d-k 4,64,1024\n"
    "  headwise lesson byhand --seed 1"};

void list_lessons(const CLI::App& lesson, std::ostream& out) {
  out << "Lessons:\n";
  for (const CLI::App* one : lesson.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string description = one->get_description();
    std::string name = "  headwise lesson " + one->get_name();
    name.resize(26, ' ');
    out << name << description.substr(0, description.find('\n')) << '\n';
  }
  out << "Each has --help, with the numbers that can be changed.\n";
}

}  // namespace

void add_lesson(CLI::App& program, Action& action) {
  CLI::App* verb = add_verb(program, kText);
  verb->require_subcommand(0, 1);
  add_lesson_scale(*verb, action);
  add_lesson_heads(*verb, action);
  add_lesson_byhand(*verb, action);
  // A lesson's own callback runs before this one. The list is made now: the parser's verbs are
  // gone when the action runs.
  verb->callback([verb, &action] {
    if (action) return;
    std::ostringstream list;
    list_lessons(*verb, list);
    action = [text = list.str()](std::ostream& out) {
      out << text;
      return kSuccess;
    };
  });
}

}  // namespace headwise::cli
