// torch's CPU generator (a 32-bit Mersenne Twister) and its draws, so that a seed gives torch's
// tables.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "headwise/export.h"
#include "headwise/tensor.h"

namespace headwise {

class HEADWISE_API Generator {
 public:
  explicit Generator(std::uint64_t seed);
  void manual_seed(std::uint64_t seed);
  std::uint32_t next_u32();
  std::uint64_t next_u64();
  double next_normal();  // for one double draw at a time; keeps the second of a pair as torch does

  // Fill a contiguous f32, f64, bf16 or f16 tensor as torch's Tensor.uniform_ and Tensor.normal_
  // do.
  void uniform(const TensorView& out, double low, double high);
  void normal(const TensorView& out, double mean, double std);

 private:
  static constexpr int kStateSize = 624;
  void refill();

  std::array<std::uint32_t, kStateSize> state_{};
  int next_ = kStateSize;
  std::optional<double> cached_normal_;
};

// The process's generator, as torch.manual_seed sets it. Not for use from several threads at once.
HEADWISE_API Generator& default_generator();
HEADWISE_API void manual_seed(std::uint64_t seed);

// torch.randn: standard normal draws from `generator`.
HEADWISE_API Tensor randn(Shape shape, Generator& generator = default_generator(),
                          DType dtype = DType::f32);

}  // namespace headwise
