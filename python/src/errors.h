// Errors in the words of Python's callers.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "headwise/error.h"

namespace headwise::python {

// The library's names of attention's arguments are not Python's.
inline std::string in_python_names(const ArgumentError& error) {
  const std::string what = error.what();
  for (const auto& [ours, theirs] :
       {std::pair("q", "query"), std::pair("k", "key"), std::pair("v", "value"),
        std::pair("mask", "attn_mask"), std::pair("d_o", "grad_output"), std::pair("o", "output")})
    if (error.argument() == ours) return theirs + what.substr(error.argument().size());
  return what;
}

template <typename F>
auto with_python_names(F&& call) {
  try {
    return call();
  } catch (const DTypeError& e) {
    throw nanobind::type_error(in_python_names(e).c_str());
  } catch (const ArgumentError& e) {
    throw nanobind::value_error(in_python_names(e).c_str());
  }
}

}  // namespace headwise::python
