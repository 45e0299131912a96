// What all optimizers share: the checks of a step, and the state of each parameter by name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/floating.h"
#include "headwise/optim.h"
#include "runtime/parallel_for.h"

namespace headwise {

struct Optimizer::State {
  State(double rate, std::vector<std::string> names)
      : learning_rate(rate), tensor_names(std::move(names)) {}
  virtual ~State() = default;

  // Step number t, from 1, of one parameter; `tensors` are those of its state.
  virtual void update(const TrainedParameter& parameter, std::span<Tensor> tensors,
                      double t) const = 0;

  struct Entry {
    Tensor step{DType::f64, {}};
    std::vector<Tensor> tensors;  // zeros before the first step
  };

  double learning_rate;
  std::vector<std::string> tensor_names;
  std::map<std::string, Entry> entries;
};

namespace optim {

// Throws ArgumentError unless x is finite and not below 0.
void check_not_negative(const char* argument, double x);
void check_contiguous(const std::string& name, const ConstTensorView& view);

inline constexpr std::size_t kChunk = 1 << 14;  // elements of a task

// body(first, last) for all of n elements.
template <typename F>
void for_each_chunk(std::size_t n, F&& body) {
  runtime::parallel_for((n + kChunk - 1) / kChunk,
                        [&](std::size_t i) { body(i * kChunk, std::min(n, (i + 1) * kChunk)); });
}

template <typename V>
using Arithmetic = std::conditional_t<std::is_same_v<V, double>, double, float>;

// value[i] = next(value[i], gradient[i], i) in the parameter's arithmetic.
template <typename F>
void for_each_element(const TrainedParameter& p, F&& next) {
  core::with_floating(p.value.dtype, [&](auto v) {
    using V = decltype(v);
    using T = Arithmetic<V>;
    const auto run = [&]<typename G>(const G* gradient) {
      V* value = static_cast<V*>(p.value.data);
      for_each_chunk(element_count(p.value.shape), [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i)
          value[i] = core::as<V>(next(core::as<T>(value[i]), core::as<T>(gradient[i]), i));
      });
    };
    if (p.gradient.dtype == p.value.dtype)
      run(static_cast<const V*>(p.gradient.data));
    else
      run(static_cast<const T*>(p.gradient.data));
  });
}

}  // namespace optim
}  // namespace headwise
