#include "headwise/random.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "arrays.h"
#include "bindings.h"
#include "headwise/error.h"

namespace headwise::python {
namespace {

Shape shape_of(const nb::args& size) {
  nb::handle dims = size;
  if (size.size() == 1 && !nb::isinstance<nb::int_>(size[0])) dims = size[0];  // one tuple or list
  Shape shape;
  for (nb::handle dim : dims) {
    std::int64_t n = 0;
    if (!nb::try_cast(dim, n))
      throw DTypeError("size", nb::cast<std::string>(nb::repr(dim)), "integers");
    if (n < 0) throw ArgumentError("size", std::to_string(n), "at least 0");
    shape.push_back(static_cast<std::size_t>(n));
  }
  return shape;
}

// The GIL stays held: it is what guards the process's generator, also across fork().
nb::object draw_normal(const nb::args& size, nb::handle dtype) {
  return numpy_array(randn(shape_of(size), default_generator(), dtype_argument(dtype)));
}

}  // namespace

void bind_random(nb::module_& m) {
  using namespace nb::literals;
  m.def("manual_seed", &manual_seed, "seed"_a,
        "Seeds the generator of parameters, randn and dropout, as torch.manual_seed does torch's.");
  m.def(
      "manual_seed", [](std::int64_t seed) { manual_seed(static_cast<std::uint64_t>(seed)); },
      "seed"_a);
  m.def("randn", &draw_normal, "size"_a, nb::kw_only(), "dtype"_a = "float32",
        nb::sig("def randn(*size: int | Sequence[int], dtype: object = \"float32\") -> "
                "numpy.ndarray"),
        "Standard normal draws: after manual_seed(n) those of torch.randn after\n"
        "torch.manual_seed(n). The size is given as in torch: randn(2, 3) or randn((2, 3)).");
}

}  // namespace headwise::python
