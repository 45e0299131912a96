#include "core/check.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/checked.h"

namespace headwise::core {

void throw_argument(std::string_view argument, const std::string& found,
                    const std::string& expected) {
  throw ArgumentError(std::string(argument), found, expected);
}

void throw_dtype(std::string_view argument, DType found, std::string_view expected) {
  throw DTypeError(std::string(argument), "dtype " + std::string(name_of(found)),
                   std::string(expected));
}

void check_view(std::string_view argument, const ConstTensorView& view) {
  if (view.strides.size() != view.shape.size())
    throw_argument(argument,
                   "a view with " + std::to_string(view.shape.size()) + " dims and " +
                       std::to_string(view.strides.size()) + " strides",
                   "one stride per dim");
  bool empty = false;
  for (std::size_t n : view.shape) empty = empty || n == 0;
  if (empty) return;
  // The farthest byte from data in either direction has to be addressable.
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
  const std::size_t size = size_of(view.dtype);  // a power of two
  const std::uint64_t limit = kMax / size;
  std::uint64_t reach = 1;
  bool fits = true;
  for (std::size_t i = 0; i < view.shape.size() && fits; ++i) {
    const std::ptrdiff_t stride = view.strides[i];
    const std::uint64_t step = stride < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(stride)
                                          : static_cast<std::uint64_t>(stride);
    const auto extent = checked_mul(view.shape[i] - 1, step);
    const auto sum = extent ? checked_add(reach, *extent) : std::nullopt;
    fits = sum && *sum <= limit;
    if (fits) reach = *sum;
  }
  // A broadcast view may count more elements than memory has, but never more than size_t.
  std::uint64_t count = 1;
  for (std::size_t n : view.shape) {
    const auto product = checked_mul(count, n);
    fits = fits && product && *product <= kMax;
    if (fits) count = *product;
  }
  if (!fits)
    throw_argument(argument, "shape " + to_string(view.shape) + " with its strides",
                   "a tensor whose size in bytes fits the address space");
  if (view.data == nullptr)
    throw_argument(argument, "null data for shape " + to_string(view.shape),
                   "a pointer to its elements");
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(view.data) & (size - 1);
  if (past != 0)
    throw_argument(
        argument,
        "data " + std::to_string(past) + " past a multiple of " + std::to_string(size) + " bytes",
        "data aligned to its elements, " + std::string(name_of(view.dtype)));
}

void check_shape(std::string_view argument, const Shape& found, const Shape& expected,
                 std::string_view why) {
  if (found == expected) return;
  std::string wanted = to_string(expected);
  if (!why.empty()) wanted += " (" + std::string(why) + ")";
  throw_argument(argument, "shape " + to_string(found), wanted);
}

void check_dtype(std::string_view argument, DType found, DType expected) {
  if (found != expected) throw_dtype(argument, found, name_of(expected));
}

void check_probability(std::string_view argument, double p) {
  if (!(p >= 0.0 && p <= 1.0))  // false for NaN too
    throw_argument(argument, std::to_string(p), "a probability in [0, 1]");
}

}  // namespace headwise::core
