// One case through headwise, compared with what the file expects.
#pragma once

#include "parity/case.h"
#include "parity/compare.h"

namespace headwise::parity {

Difference run_sdpa(const Case& c);
Difference run_module(const Case& c);
Difference run_init(const Case& c);
Difference run_draws(const Case& c);

}  // namespace headwise::parity
