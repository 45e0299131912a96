// Weights in the order in which matmul.cc reads them: [panel][k][column].
#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "core/floating.h"
#include "kernels/matmul.h"
#include "runtime/parallel_for.h"

namespace headwise::kernels {
namespace {

// Blocks of k, so that both the row being read and the panel being written stay in cache.
constexpr std::size_t kBlockK = 64;

// A panel's elements: those of row k are kStep apart, since rows of bf16 come in pairs.
template <typename To>
struct Panel {
  static constexpr std::size_t kStep = std::is_same_v<To, bfloat16> ? 2 : 1;
  To* row(std::size_t k) const { return data + (k / kStep * columns * kStep + k % kStep); }

  To* data;
  std::size_t columns;
};

// Rows n0, n0 + 1, ... of w are the panel's columns.
template <typename From, typename To>
void pack_panel(const ConstTensorView& w, std::size_t n0, const Panel<To>& to) {
  constexpr std::size_t kStep = Panel<To>::kStep;
  const From* x = static_cast<const From*>(w.data) + static_cast<std::ptrdiff_t>(n0) * w.strides[0];
  const std::size_t K = w.shape[1], n = std::min(to.columns, w.shape[0] - n0);
  const auto at = [&](std::size_t j, std::size_t k) {
    return core::as<To>(x[static_cast<std::ptrdiff_t>(j) * w.strides[0] +
                          static_cast<std::ptrdiff_t>(k) * w.strides[1]]);
  };
  if (w.strides[0] == 1) {  // a transposed table, read along its rows
    for (std::size_t k = 0; k < K; ++k) {
      const From* from = x + static_cast<std::ptrdiff_t>(k) * w.strides[1];
      To* row = to.row(k);
      for (std::size_t j = 0; j < n; ++j) row[j * kStep] = core::as<To>(from[j]);
    }
  } else {
    for (std::size_t k0 = 0; k0 < K; k0 += kBlockK)
      for (std::size_t j = 0; j < n; ++j)
        for (std::size_t k = k0, end = std::min(K, k0 + kBlockK); k < end; ++k)
          to.row(k)[j * kStep] = at(j, k);
  }
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t j = n; j < to.columns; ++j) to.row(k)[j * kStep] = To{};
}

template <typename From, typename To>
void pack_panels(const ConstTensorView& w, const PackedWeights& packed, To* panels) {
  const std::size_t columns = packed.panel_columns();
  const auto pack = [&](std::size_t p) {
    const Panel<To> panel{panels + p * packed.padded_K() * columns, columns};
    pack_panel<From>(w, p * columns, panel);
    for (std::size_t k = packed.K(); k < packed.padded_K(); ++k)
      for (std::size_t j = 0; j < columns; ++j) panel.row(k)[j * Panel<To>::kStep] = To{};
  };
  constexpr std::size_t kWorthThreads = std::size_t{1} << 15;  // elements: about 10 us
  if (packed.n_panels() * packed.padded_K() * columns >= kWorthThreads)
    runtime::parallel_for(packed.n_panels(), pack);
  else
    for (std::size_t p = 0; p < packed.n_panels(); ++p) pack(p);
}

template <typename From, typename To>
void pack_bias(const ConstTensorView& bias, std::size_t n, std::size_t n_padded, To* out) {
  for (std::size_t j = 0; j < n_padded; ++j)
    out[j] = bias.data != nullptr && j < n
                 ? core::as<To>(static_cast<const From*>(
                       bias.data)[static_cast<std::ptrdiff_t>(j) * bias.strides[0]])
                 : To{0};
}

}  // namespace

PackedWeights::PackedWeights(const ConstTensorView& w, const ConstTensorView& bias)
    : dtype_(w.dtype == DType::f64 ? DType::f64 : DType::f32),
      stored_(w.dtype == DType::f16 ? DType::f32 : w.dtype),
      N_(w.shape[0]),
      K_(w.shape[1]) {
  auto panels = std::make_shared<Buffer>(n_panels() * panel_bytes());
  core::with_floating(w.dtype, [&](auto from) {
    using From = decltype(from);
    using Stored = std::conditional_t<std::is_same_v<From, float16>, float, From>;
    pack_panels<From>(w, *this, reinterpret_cast<Stored*>(panels->data()));
  });
  panels_ = std::move(panels);
  set_bias(bias);
}

PackedWeights::PackedWeights(const PackedWeights& other, const ConstTensorView& bias)
    : dtype_(other.dtype_),
      stored_(other.stored_),
      N_(other.N_),
      K_(other.K_),
      panels_(other.panels_) {
  set_bias(bias);
}

void PackedWeights::set_bias(const ConstTensorView& bias) {
  bias_ = Buffer(n_panels() * kPanelBytes);
  const std::size_t n = n_panels() * panel_columns();
  core::with_floating(bias.dtype, [&](auto from) {
    if (dtype_ == DType::f64)
      pack_bias<decltype(from)>(bias, N_, n, reinterpret_cast<double*>(bias_.data()));
    else
      pack_bias<decltype(from)>(bias, N_, n, reinterpret_cast<float*>(bias_.data()));
  });
}

}  // namespace headwise::kernels
