#include "optim/optimizer.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "core/check.h"

namespace headwise {
namespace {

DType state_dtype(DType value) { return value == DType::f64 ? DType::f64 : DType::f32; }

void check_parameter(const TrainedParameter& p) {
  if (!is_floating(p.value.dtype))
    core::throw_dtype(p.name, p.value.dtype, "f32, f64, bf16 or f16");
  optim::check_contiguous(p.name, p.value);
  const std::string gradient = "gradient of " + p.name;
  const DType wide = state_dtype(p.value.dtype);
  if (p.gradient.dtype != p.value.dtype && p.gradient.dtype != wide)
    core::throw_dtype(gradient, p.gradient.dtype,
                      std::string(name_of(p.value.dtype)) +
                          (wide == p.value.dtype ? "" : " or " + std::string(name_of(wide))));
  core::check_shape(gradient, p.gradient.shape, p.value.shape);
  optim::check_contiguous(gradient, p.gradient);
}

void fill_zero(Tensor& t) { std::memset(t.view().data, 0, t.size() * size_of(t.dtype())); }

Optimizer::State::Entry new_entry(const Optimizer::State& state, const TensorView& value) {
  Optimizer::State::Entry entry;
  fill_zero(entry.step);
  for (std::size_t i = 0; i < state.tensor_names.size(); ++i)
    entry.tensors.push_back(Tensor::zeros(state_dtype(value.dtype), value.shape));
  return entry;
}

}  // namespace

void optim::check_contiguous(const std::string& name, const ConstTensorView& view) {
  core::check_view(name, view);
  std::ptrdiff_t expected = 1;
  for (std::size_t i = 0; i < view.rank(); ++i) {
    const std::size_t n = view.shape.from_back(i);
    if (n != 1 && view.strides.from_back(i) != expected)
      core::throw_argument(name, "strides of shape " + to_string(view.shape) + " with gaps",
                           "a contiguous tensor");
    expected *= static_cast<std::ptrdiff_t>(n);
  }
}

void optim::check_not_negative(const char* argument, double x) {
  if (!(x >= 0) || std::isinf(x))
    core::throw_argument(argument, std::to_string(x), "a finite number, at least 0");
}

std::vector<TrainedParameter> trained(std::span<const NamedTensorView> values,
                                      std::span<const NamedTensorView> gradients) {
  std::vector<TrainedParameter> all;
  for (const NamedTensorView& value : values) {
    TrainedParameter& p = all.emplace_back(TrainedParameter{value.name, value.view, {}});
    for (const NamedTensorView& gradient : gradients)
      if (gradient.name == value.name) p.gradient = gradient.view;
  }
  return all;
}

Optimizer::Optimizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

double Optimizer::learning_rate() const { return state_->learning_rate; }

void Optimizer::set_learning_rate(double learning_rate) {
  optim::check_not_negative("learning_rate", learning_rate);
  state_->learning_rate = learning_rate;
}

void Optimizer::step(std::span<const TrainedParameter> parameters) {
  std::map<std::string, State::Entry> added;
  std::vector<State::Entry*> entries;
  for (const TrainedParameter& p : parameters) {
    entries.push_back(nullptr);
    if (p.gradient.data == nullptr) continue;
    check_parameter(p);
    for (const TrainedParameter& other : parameters)
      if (&other < &p && other.name == p.name)
        core::throw_argument("parameters", "\"" + p.name + "\" twice", "each name once");
    if (const auto found = state_->entries.find(p.name); found != state_->entries.end()) {
      entries.back() = &found->second;
      for (const Tensor& tensor : found->second.tensors) {
        core::check_shape(p.name, p.value.shape, tensor.shape(), "the state of this name");
        if (tensor.dtype() != state_dtype(p.value.dtype))
          core::throw_dtype(p.name, p.value.dtype,
                            "one whose state is " + std::string(name_of(tensor.dtype())));
      }
    } else {
      entries.back() = &added.emplace(p.name, new_entry(*state_, p.value)).first->second;
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (entries[i] == nullptr) continue;
    double& t = *entries[i]->step.data<double>();
    ++t;
    state_->update(parameters[i], entries[i]->tensors, t);
  }
  state_->entries.merge(added);
}

std::vector<NamedView> Optimizer::state() const {
  std::vector<NamedView> all;
  for (const auto& [name, entry] : state_->entries) {
    all.push_back({name + ".step", entry.step});
    for (std::size_t i = 0; i < entry.tensors.size(); ++i)
      all.push_back({name + "." + state_->tensor_names[i], entry.tensors[i]});
  }
  return all;
}

void Optimizer::load_state(std::span<const NamedView> state) {
  // Which tensor of an entry a name is: 0 is the number of steps.
  const auto index_of = [this](const std::string& suffix) {
    std::size_t i = 0;
    if (suffix == "step") return i;
    while (i < state_->tensor_names.size() && state_->tensor_names[i] != suffix) ++i;
    return i + 1;
  };
  std::string all_names = "step";
  for (const std::string& name : state_->tensor_names) all_names.append(", ").append(name);
  std::map<std::string, std::vector<const ConstTensorView*>> found;
  for (const NamedView& one : state) {
    const std::size_t dot = one.name.rfind('.');
    const std::string suffix = dot == std::string::npos ? "" : one.name.substr(dot + 1);
    const std::size_t i = index_of(suffix);
    if (dot == std::string::npos || i > state_->tensor_names.size())
      core::throw_argument("state", "\"" + one.name + "\"",
                           "names that end in a dot and one of " + all_names);
    core::check_view(one.name, one.view);
    if (one.view.dtype != DType::f32 && one.view.dtype != DType::f64)
      core::throw_dtype(one.name, one.view.dtype, "f32 or f64");
    auto& views = found[one.name.substr(0, dot)];
    views.resize(state_->tensor_names.size() + 1);
    if (views[i] != nullptr)
      core::throw_argument("state", "\"" + one.name + "\" twice", "each name once");
    views[i] = &one.view;
  }
  std::map<std::string, State::Entry> entries;
  for (const auto& [name, views] : found) {
    State::Entry entry;
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i] == nullptr)
        core::throw_argument("state", "\"" + name + "\" without all of them",
                             "each of " + all_names);
      if (i == 0) {
        core::check_shape(name + ".step", views[0]->shape, {});
        *entry.step.data<double>() = views[0]->dtype == DType::f64
                                         ? *static_cast<const double*>(views[0]->data)
                                         : *static_cast<const float*>(views[0]->data);
        continue;
      }
      core::check_shape(name + "." + state_->tensor_names[i - 1], views[i]->shape, views[1]->shape);
      core::check_dtype(name + "." + state_->tensor_names[i - 1], views[i]->dtype, views[1]->dtype);
      entry.tensors.push_back(Tensor::copy_of(*views[i]));
    }
    entries.emplace(name, std::move(entry));
  }
  state_->entries = std::move(entries);
}

}  // namespace headwise
