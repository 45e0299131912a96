// The only place that words an argument error: "NAME: found FOUND, expected EXPECTED".
#pragma once

#include <string>
#include <string_view>

#include "headwise/error.h"
#include "headwise/tensor.h"

namespace headwise::core {

[[noreturn]] void throw_argument(std::string_view argument, const std::string& found,
                                 const std::string& expected);
[[noreturn]] void throw_dtype(std::string_view argument, DType found, std::string_view expected);

// The view can be walked: aligned data unless it is empty, as many strides as dims, a size and a
// span of bytes that fit size_t and ptrdiff_t.
void check_view(std::string_view argument, const ConstTensorView& view);

void check_shape(std::string_view argument, const Shape& found, const Shape& expected,
                 std::string_view why = {});
void check_dtype(std::string_view argument, DType found, DType expected);
void check_probability(std::string_view argument, double p);  // in [0, 1], not NaN

}  // namespace headwise::core
