#include "parity/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace headwise::parity {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double value_at(const ConstTensorView& t, std::size_t i) {
  switch (t.dtype) {
    case DType::f32:
      return static_cast<const float*>(t.data)[i];
    case DType::f64:
      return static_cast<const double*>(t.data)[i];
    case DType::bf16:
      return static_cast<float>(static_cast<const bfloat16*>(t.data)[i]);
    case DType::f16:
      return static_cast<float>(static_cast<const float16*>(t.data)[i]);
    default:
      throw std::runtime_error("no number of dtype " + std::string(name_of(t.dtype)));
  }
}

// Representable values between 0 and this one.
std::int64_t steps_at(const ConstTensorView& t, std::size_t i) {
  const std::size_t width = size_of(t.dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(t.data) + i * width, width);
  const std::uint64_t sign = std::uint64_t{1} << (8 * width - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return (bits & sign) != 0 ? -magnitude : magnitude;
}

void check_same_form(const std::string& name, const ConstTensorView& found,
                     const ConstTensorView& expected) {
  if (found.shape == expected.shape) return;
  throw std::runtime_error(name + " has shape " + to_string(found.shape) + ", expected " +
                           to_string(expected.shape));
}

std::string element(const std::string& name, const Shape& shape, std::size_t i) {
  std::string index;
  for (std::size_t d = shape.size(); d-- > 0; i /= shape[d])
    index = std::to_string(i % shape[d]) + (index.empty() ? "" : ", ") + index;
  return name + "[" + index + "]";
}

double row_scale(const ConstTensorView& expected, std::size_t first, std::size_t n) {
  double largest = 0.0;
  for (std::size_t i = first; i < first + n; ++i)
    largest = std::max(largest, std::abs(value_at(expected, i)));  // a NaN loses
  return largest;
}

struct Element {
  double found, expected, scale;
  std::int64_t steps;  // between found and expected, 16-bit dtypes only
};

// Units of the allowed error; sets near_zero where only the scale saves a 16-bit element.
double units_of(const Element& e, DType dtype, double weight_rounding, bool& near_zero) {
  if (std::isnan(e.expected)) return std::isnan(e.found) ? 0.0 : kInfinity;
  if (e.found == e.expected) return 0.0;
  if (!std::isfinite(e.found) || std::isinf(e.expected)) return kInfinity;
  const double error = std::abs(e.found - e.expected);
  const double allowed = (dtype == DType::f64 ? 1e-14 : 2e-6) * e.scale +
                         weight_rounding * (e.scale + std::abs(e.expected));  // and the last one
  const double relative = error / allowed;  // inf where the scale is 0
  if (size_of(dtype) != 2) return relative;
  const auto steps = static_cast<double>(std::abs(e.steps));
  if (steps <= 1) return steps;
  if (weight_rounding > 0) return relative;
  near_zero = relative <= 1;
  return near_zero ? relative : steps;
}

}  // namespace

void Difference::add(const Difference& other) {
  elements += other.elements;
  near_zero += other.near_zero;
  if (!(other.units > units)) return;
  units = other.units;
  worst = other.worst;
}

Difference compare(const std::string& name, const ConstTensorView& found,
                   const ConstTensorView& expected, Scale kind, const ConstTensorView& scale,
                   double weight_rounding) {
  check_same_form(name, found, expected);
  Difference d;
  d.elements = element_count(expected.shape);
  if (d.elements == 0) return d;
  const std::size_t n =
      kind == Scale::unit || expected.rank() == 0 ? 1 : expected.shape.from_back(0);
  for (std::size_t row = 0; row < d.elements / n; ++row) {
    const double of_row = kind == Scale::given ? value_at(scale, row)
                          : kind == Scale::row ? row_scale(expected, row * n, n)
                                               : std::max(1.0, row_scale(expected, row, 1));
    for (std::size_t i = row * n; i < (row + 1) * n; ++i) {
      const Element e{
          value_at(found, i), value_at(expected, i), of_row,
          found.dtype == expected.dtype ? steps_at(found, i) - steps_at(expected, i) : 0};
      bool near_zero = false;
      const double units = units_of(e, found.dtype, weight_rounding, near_zero);
      d.near_zero += near_zero ? 1 : 0;
      if (units <= d.units) continue;
      d.units = units;
      d.worst = element(name, expected.shape, i) + ": found " + std::to_string(e.found) +
                ", expected " + std::to_string(e.expected);
    }
  }
  return d;
}

Difference compare_steps(const std::string& name, const ConstTensorView& found,
                         const ConstTensorView& expected, int allowed) {
  check_same_form(name, found, expected);
  if (found.dtype != expected.dtype) throw std::runtime_error(name + " has another dtype");
  Difference d;
  d.elements = element_count(expected.shape);
  for (std::size_t i = 0; i < d.elements; ++i) {
    const std::int64_t steps = std::abs(steps_at(found, i) - steps_at(expected, i));
    const double units = steps == 0     ? 0.0
                         : allowed == 0 ? kInfinity
                                        : static_cast<double>(steps) / allowed;
    if (units <= d.units) continue;
    d.units = units;
    d.worst = element(name, expected.shape, i) + ": " + std::to_string(steps) + " steps off";
  }
  return d;
}

}  // namespace headwise::parity
