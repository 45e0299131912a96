// The module headwise._core: the library for Python.
#include <nanobind/stl/string.h>

#include <exception>
#include <string>

#include "bindings.h"
#include "headwise/error.h"
#include "headwise/version.h"

namespace nb = nanobind;

namespace {

// ArgumentError is a std::invalid_argument, which nanobind makes a ValueError.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const headwise::DTypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  } catch (const headwise::FileError& e) {
    PyErr_SetString(PyExc_OSError, e.what());
  }
}

}  // namespace

namespace headwise::python {

double probability_argument(const char* name, nb::handle value) {
  double p = 0.0;
  if (nb::isinstance<nb::bool_>(value) || !nb::try_cast(value, p))
    throw DTypeError(name, nb::cast<std::string>(nb::repr(value)), "a number in [0, 1]");
  return p;
}

}  // namespace headwise::python

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // a library does not print
  nb::register_exception_translator(translate);
  m.attr("__version__") = HEADWISE_VERSION;
  headwise::python::bind_attention(m);
  headwise::python::bind_multihead_attention(m);
  headwise::python::bind_random(m);
  headwise::python::bind_runtime(m);
  headwise::python::bind_torch(m);
}
