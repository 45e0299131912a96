// Weights in the order in which matmul.cc reads them: [panel][k][column].
#include <algorithm>

#include "kernels/matmul.h"

namespace headwise::kernels {
namespace {

// Blocks of k, so that both the row being read and the panel being written stay in cache.
constexpr std::size_t kBlockK = 64;

template <typename From, typename To>
void pack_panel(const ConstTensorView& w, std::size_t n0, std::size_t n, std::size_t columns,
                To* panel) {
  const From* x = static_cast<const From*>(w.data);
  const std::size_t K = w.shape[1];
  for (std::size_t k0 = 0; k0 < K; k0 += kBlockK) {
    const std::size_t end = std::min(K, k0 + kBlockK);
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t k = k0; k < end; ++k)
        panel[k * columns + j] =
            j < n ? static_cast<To>(x[static_cast<std::ptrdiff_t>(n0 + j) * w.strides[0] +
                                      static_cast<std::ptrdiff_t>(k) * w.strides[1]])
                  : To{0};
  }
}

template <typename From, typename To>
void pack_bias(const ConstTensorView& bias, std::size_t n, std::size_t n_padded, To* out) {
  for (std::size_t j = 0; j < n_padded; ++j)
    out[j] = bias.data != nullptr && j < n
                 ? static_cast<To>(static_cast<const From*>(
                       bias.data)[static_cast<std::ptrdiff_t>(j) * bias.strides[0]])
                 : To{0};
}

template <typename F>
void with_types(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(double{}, double{});
    case DType::bf16:
      return f(bfloat16{}, float{});
    case DType::f16:
      return f(float16{}, float{});
    default:
      return f(float{}, float{});
  }
}

}  // namespace

PackedWeights::PackedWeights(const ConstTensorView& w, const ConstTensorView& bias)
    : dtype_(w.dtype == DType::f64 ? DType::f64 : DType::f32), N_(w.shape[0]), K_(w.shape[1]) {
  panels_ = Buffer(n_panels() * K_ * kPanelBytes);
  bias_ = Buffer(n_panels() * kPanelBytes);
  const std::size_t columns = panel_columns();
  with_types(w.dtype, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    for (std::size_t p = 0; p < n_panels(); ++p)
      pack_panel<From>(w, p * columns, std::min(columns, N_ - p * columns), columns,
                       reinterpret_cast<To*>(panels_.data()) + p * K_ * columns);
    pack_bias<From>(bias, N_, n_panels() * columns, reinterpret_cast<To*>(bias_.data()));
  });
}

}  // namespace headwise::kernels
