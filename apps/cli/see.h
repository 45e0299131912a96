// `headwise see`: what each attention head of a real model looks at, for a sentence.
#pragma once

#include "cli/common.h"

namespace headwise::cli {

void add_see(CLI::App& program, Action& action);

}  // namespace headwise::cli
