#include "headwise/runtime.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "headwise/plan.h"

namespace headwise::python {

namespace nb = nanobind;
using namespace nb::literals;

void bind_runtime(nb::module_& m) {
  m.def("get_num_threads", &get_num_threads,
        "How many threads a call may use. Results do not depend on it.");
  m.def("set_num_threads", &set_num_threads, "n"_a, "Sets how many threads a call may use.");

  m.def("available_isas", &available_isas,
        "Instruction sets that this CPU and this build have, best first.");
  m.def("isa", &isa, "The instruction set in use.");
  m.def("set_isa", &set_isa, "name"_a,
        "Chooses an instruction set: one of available_isas(), or \"auto\" for the best.");

  m.def("available_kernels", &available_kernels, "Attention kernels that this CPU can run.");
  m.def("kernel", &kernel, "The attention kernel that was asked for, or \"auto\".");
  m.def("set_kernel", &set_kernel, "name"_a,
        "Chooses an attention kernel: one of available_kernels(), or \"auto\" to let every call's\n"
        "sizes decide. A call that the kernel cannot compute runs as under \"auto\".");
}

}  // namespace headwise::python
