#include <cmath>

#include "core/check.h"
#include "optim/optimizer.h"

namespace headwise {
namespace {

// In chunks whose sums are added in order, whoever made them.
double sum_of_squares(const TensorView& x) {
  const std::size_t n = element_count(x.shape);
  std::vector<double> sums((n + optim::kChunk - 1) / optim::kChunk);
  core::with_floating(x.dtype, [&](auto v) {
    const auto* data = static_cast<const decltype(v)*>(x.data);
    optim::for_each_chunk(n, [&](std::size_t first, std::size_t last) {
      double sum = 0;
      for (std::size_t i = first; i < last; ++i) {
        const double g = core::as<double>(data[i]);
        sum += g * g;
      }
      sums[first / optim::kChunk] = sum;
    });
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

void scale(const TensorView& x, double factor) {
  core::with_floating(x.dtype, [&](auto v) {
    using V = decltype(v);
    using T = optim::Arithmetic<V>;
    V* data = static_cast<V*>(x.data);
    const T by = static_cast<T>(factor);
    optim::for_each_chunk(element_count(x.shape), [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) data[i] = core::as<V>(core::as<T>(data[i]) * by);
    });
  });
}

}  // namespace

double clip_gradient_norm(std::span<const NamedTensorView> gradients, double max_norm,
                          bool error_if_nonfinite) {
  if (!(max_norm >= 0)) core::throw_argument("max_norm", std::to_string(max_norm), "at least 0");
  double sum = 0;
  for (const NamedTensorView& g : gradients) {
    if (!is_floating(g.view.dtype))
      core::throw_dtype(g.name, g.view.dtype, "f32, f64, bf16 or f16");
    optim::check_contiguous(g.name, g.view);
  }
  for (const NamedTensorView& g : gradients) sum += sum_of_squares(g.view);
  const double norm = std::sqrt(sum);
  if (error_if_nonfinite && !std::isfinite(norm))
    core::throw_argument("gradients", "a norm of " + std::to_string(norm), "a finite one");
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1))
    for (const NamedTensorView& g : gradients) scale(g.view, factor);
  return norm;
}

}  // namespace headwise
