// The Python literal in an .npy header: a dict of three keys, and nothing else that Python can say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwise::io::npy {

struct Dict {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::uint64_t> shape;
};

Dict parse_dict(std::string_view text);  // throws a Refusal

}  // namespace headwise::io::npy
