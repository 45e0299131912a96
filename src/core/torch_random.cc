// torch's CPU draws. What has to agree with torch 2.13:
//   uniform   bit for bit: one 32-bit draw per f32, bf16 or f16, two per f64
//   normal    fewer than 16 elements: pairs in double, the second of each kept for the next call;
//             16 or more: blocks of 16 uniforms, turned in place (Box and Muller 1958), where a
//             rest is covered by drawing the last 16 elements anew
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "headwise/random.h"

namespace headwise {
namespace {

constexpr std::size_t kBlock = 16;  // normals that torch makes at a time

// torch computes bf16 and f16 draws in float.
template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename F>
void with_type(DType dtype, F&& run) {
  switch (dtype) {
    case DType::f32:
      return run(float{});
    case DType::f64:
      return run(double{});
    case DType::bf16:
      return run(bfloat16{});
    case DType::f16:
      return run(float16{});
    default:
      core::throw_dtype("out", dtype, "f32, f64, bf16 or f16");
  }
}

// In [0, 1): as many random bits as the significand holds.
template <typename C>
C unit_draw(Generator& g) {
  if constexpr (std::is_same_v<C, double>)
    return static_cast<double>(g.next_u64() & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
  else
    return static_cast<float>(g.next_u32() & ((std::uint32_t{1} << 24) - 1)) * 0x1p-24f;
}

float horner(float x, std::initializer_list<float> coefficients) {
  float y = 0.0f;
  for (float c : coefficients) y = std::fma(y, x, c);
  return y;
}

// log, sin and cos of torch's vectorised f32 path: the Cephes polynomials, with each step fused as
// its compiler fuses it. libm is more accurate, and wrong here: near a zero of sin or cos the two
// differ by far more than the 2 ulp that a table of normals may be off.

// x in [2^-24, 1].
float torch_log(float x) {
  int exponent = 0;
  float r = std::frexp(x, &exponent);  // in [0.5, 1)
  if (r < std::numbers::sqrt2_v<float> / 2) {
    r = r - 1.0f + r;
    --exponent;
  } else {
    r -= 1.0f;
  }
  const auto e = static_cast<float>(exponent);
  const float z = r * r;
  const float p = horner(r, {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f,
                             -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                             2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f});
  // log 2 = 0.693359375 - 2.12194440e-4; the first has few enough bits for an exact product.
  const float low = std::fma(p * r, z, e * -2.12194440e-4f);
  return r + std::fma(-0.5f, z, low) + e * 0.693359375f;
}

struct SinCos {
  float sin, cos;
};

// x in [0, 2 pi].
SinCos torch_sin_cos(float x) {
  const int octant = (static_cast<int>(x * 1.27323954473516f) + 1) & ~1;  // x * 4 / pi, made even
  const auto n = static_cast<float>(octant);
  float r = std::fma(n, -0.78515625f, x);  // x - n * pi / 4, pi / 4 in three parts
  r = std::fma(n, -2.4187564849853515625e-4f, r);
  r = std::fma(n, -3.77489497744594108e-8f, r);
  const float z = r * r;
  const float c = horner(z, {2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f});
  const float s = horner(z, {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f});
  const float cos_r = std::fma(c * z, z, -0.5f * z) + 1.0f;
  const float sin_r = std::fma(s * z, r, r);
  const bool swapped = (octant & 2) != 0;
  const float sin_x = swapped ? cos_r : sin_r, cos_x = swapped ? sin_r : cos_r;
  return {(octant & 4) != 0 ? -sin_x : sin_x, octant == 2 || octant == 4 ? -cos_x : cos_x};
}

// 16 uniforms to 16 normals: element j pairs with j + 8.
void to_normals(std::array<float, kBlock>& x, float mean, float std) {
  for (std::size_t j = 0; j < kBlock / 2; ++j) {
    const float radius = std::sqrt(-2.0f * torch_log(1.0f - x[j]));
    const SinCos turn = torch_sin_cos(static_cast<float>(2 * std::numbers::pi) * x[j + 8]);
    x[j] = std::fma(radius * turn.cos, std, mean);
    x[j + 8] = std::fma(radius * turn.sin, std, mean);
  }
}

void to_normals(std::array<double, kBlock>& x, double mean, double std) {
  for (std::size_t j = 0; j < kBlock / 2; ++j) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - x[j]));
    const double angle = 2.0 * std::numbers::pi * x[j + 8];
    x[j] = std::fma(radius * std::cos(angle), std, mean);
    x[j + 8] = std::fma(radius * std::sin(angle), std, mean);
  }
}

template <typename T>
struct NormalFill {
  using C = Compute<T>;
  Generator& generator;
  T* out;
  C mean, std;

  void turn(std::array<C, kBlock>& x, std::size_t at) const {
    to_normals(x, mean, std);
    for (std::size_t j = 0; j < kBlock; ++j) out[at + j] = static_cast<T>(x[j]);
  }
  void draw_block(std::size_t at) const {
    std::array<C, kBlock> x;
    for (C& u : x) u = unit_draw<C>(generator);
    turn(x, at);
  }
  // torch draws f32 and f64 as one run of uniforms, so the rest's own draws come before the last
  // block is drawn anew; in 16 bits it draws block by block and skips them.
  void fill(std::size_t n) const {
    for (std::size_t at = 0; at + kBlock <= n; at += kBlock) draw_block(at);
    if (n % kBlock == 0) return;
    if constexpr (std::is_same_v<T, C>)
      for (std::size_t i = 0; i < n % kBlock; ++i) unit_draw<C>(generator);
    draw_block(n - kBlock);
  }
};

void check_fillable(const TensorView& out) {
  core::check_view("out", out);
  if (!is_floating(out.dtype)) core::throw_dtype("out", out.dtype, "f32, f64, bf16 or f16");
  if (!(out.strides == contiguous_strides(out.shape)) && element_count(out.shape) > 1)
    core::throw_argument("out", "strides that leave gaps or a different order",
                         "a contiguous tensor of shape " + to_string(out.shape));
}

double largest(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return std::numeric_limits<double>::max();
    case DType::bf16:
      return static_cast<float>(bfloat16::from_bits(0x7f7f));
    case DType::f16:
      return 65504.0;
    default:
      return std::numeric_limits<float>::max();
  }
}

}  // namespace

Generator::Generator(std::uint64_t seed) { manual_seed(seed); }

void Generator::manual_seed(std::uint64_t seed) {
  state_[0] = static_cast<std::uint32_t>(seed);  // torch, too, leaves the upper half unused
  for (std::uint32_t i = 1; i < kStateSize; ++i)
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  next_ = kStateSize;
  cached_normal_.reset();
}

void Generator::refill() {
  constexpr int kMiddle = 397;
  for (int i = 0; i < kStateSize; ++i) {
    const std::uint32_t upper = state_[i] & 0x80000000u;
    const std::uint32_t y = upper | (state_[(i + 1) % kStateSize] & 0x7fffffffu);
    state_[i] = state_[(i + kMiddle) % kStateSize] ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908b0dfu : 0u);
  }
  next_ = 0;
}

std::uint32_t Generator::next_u32() {
  if (next_ == kStateSize) refill();
  std::uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

std::uint64_t Generator::next_u64() {
  const std::uint64_t high = next_u32();
  return (high << 32) | next_u32();
}

double Generator::next_normal() {
  if (cached_normal_) return *std::exchange(cached_normal_, std::nullopt);
  const double u1 = unit_draw<double>(*this), u2 = unit_draw<double>(*this);
  const double radius = std::sqrt(-2.0 * std::log1p(-u2));
  const double angle = 2.0 * std::numbers::pi * u1;
  cached_normal_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

void Generator::uniform(const TensorView& out, double low, double high) {
  check_fillable(out);
  const double limit = largest(out.dtype);
  if (!(low >= -limit && high <= limit && low <= high && high - low <= limit))  // nor with NaN
    core::throw_argument(
        "low, high", std::to_string(low) + ", " + std::to_string(high),
        "low <= high, both and their distance finite in " + std::string(name_of(out.dtype)));
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const C from = static_cast<C>(low), to = static_cast<C>(high);
    const C rounded_to = static_cast<C>(static_cast<T>(high));
    auto* x = static_cast<T*>(out.data);
    for (std::size_t i = 0, n = element_count(out.shape); i < n; ++i) {
      // One rounding, as in torch's build: separate ones would differ in every tenth draw.
      const auto value = static_cast<T>(std::fma(unit_draw<C>(*this), to - from, from));
      // Rounding must not reach the open end.
      x[i] = static_cast<C>(value) == rounded_to ? static_cast<T>(low) : value;
    }
  });
}

void Generator::normal(const TensorView& out, double mean, double std) {
  check_fillable(out);
  if (!(std >= 0.0)) core::throw_argument("std", std::to_string(std), "0 or more");
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    auto* x = static_cast<T*>(out.data);
    const std::size_t n = element_count(out.shape);
    if (n >= kBlock)
      return NormalFill<T>{*this, x, static_cast<C>(mean), static_cast<C>(std)}.fill(n);
    for (std::size_t i = 0; i < n; ++i)
      x[i] = static_cast<T>(static_cast<C>(std::fma(next_normal(), std, mean)));
  });
}

Generator& default_generator() {
  static Generator generator(67280421310721u);  // torch's seed for a process that sets none
  return generator;
}

void manual_seed(std::uint64_t seed) { default_generator().manual_seed(seed); }

Tensor randn(Shape shape, Generator& generator, DType dtype) {
  Tensor t(dtype, shape);
  generator.normal(t.view(), 0.0, 1.0);
  return t;
}

}  // namespace headwise
