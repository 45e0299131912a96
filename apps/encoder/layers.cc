#include "encoder/layers.h"

#include <algorithm>
#include <cmath>

#include "core/convert.h"
#include "runtime/parallel_for.h"

namespace headwise::encoder {
namespace {

constexpr std::size_t kChunk = 8192;  // elements a task: some 100 us of erf

}  // namespace

void LayerNorm::apply(std::span<double> x, std::span<const double> added) const {
  const std::size_t d = gain.size();
  runtime::parallel_for(x.size() / d, [&](std::size_t t) {
    const auto row = x.subspan(t * d, d);
    if (!added.empty())
      for (std::size_t i = 0; i < d; ++i) row[i] += added[t * d + i];
    double sum = 0, squares = 0;
    for (const double value : row) sum += value;
    const double mean = sum / static_cast<double>(d);
    for (const double value : row) squares += (value - mean) * (value - mean);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
    for (std::size_t i = 0; i < d; ++i) row[i] = (row[i] - mean) * factor * gain[i] + shift[i];
  });
}

void gelu(std::span<double> x) {
  constexpr double kSqrtHalf = 0.70710678118654752440;
  runtime::parallel_for((x.size() + kChunk - 1) / kChunk, [&](std::size_t chunk) {
    for (double& value : x.subspan(chunk * kChunk, std::min(kChunk, x.size() - chunk * kChunk)))
      value = 0.5 * value * (1 + std::erf(value * kSqrtHalf));
  });
}

std::vector<double> to_doubles(const ConstTensorView& view) {
  const Tensor values = core::converted(view, DType::f64);
  return {values.values<double>().begin(), values.values<double>().end()};
}

}  // namespace headwise::encoder
