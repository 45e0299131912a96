// What each source adds to the module headwise._core; one source for each header of the
// library, and one for headwise.torch.
#pragma once

#include <nanobind/nanobind.h>

namespace headwise::python {

void bind_attention(nanobind::module_& m);
void bind_multihead_attention(nanobind::module_& m);
void bind_random(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_torch(nanobind::module_& m);

// A probability as a number: True would pass as 1.
double probability_argument(const char* name, nanobind::handle value);

}  // namespace headwise::python
