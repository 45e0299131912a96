// `headwise lesson`: the formulas of attention, run for real on numbers that the learner chooses.
#pragma once

#include "cli/common.h"

namespace headwise::cli {

void add_lesson(CLI::App& program, Action& action);

// The lessons, each a verb of `lesson`.
void add_lesson_scale(CLI::App& lesson, Action& action);
void add_lesson_heads(CLI::App& lesson, Action& action);
void add_lesson_byhand(CLI::App& lesson, Action& action);

}  // namespace headwise::cli
