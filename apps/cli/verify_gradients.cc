#include "cli/verify_gradients.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "headwise/attention_backward.h"
#include "headwise/multihead_attention.h"
#include "headwise/random.h"

namespace headwise::cli {
namespace {

using Values = std::span<double>;

Values values_of(const TensorView& view) {
  return {static_cast<double*>(view.data), element_count(view.shape)};
}

Tensor drawn(Generator& generator, Shape shape) {
  Tensor t(DType::f64, shape);
  generator.normal(t.view(), 0.0, 1.0);
  return t;
}

double dot(const ConstTensorView& a, const ConstTensorView& b) {
  const auto* x = static_cast<const double*>(a.data);
  const auto* y = static_cast<const double*>(b.data);
  double sum = 0;
  for (std::size_t i = 0; i < element_count(a.shape); ++i) sum += x[i] * y[i];
  return sum;
}

// One argument, how to add to an element of it, and what is said to be its gradient.
struct Argument {
  std::string name;
  std::function<void(std::size_t i, double by)> add;
  Values gradient;
};

// Compares up to kElements of each gradient with (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12 h.
std::vector<GradientReport> compare(const std::string& call, const std::string& option,
                                    const std::vector<Argument>& arguments,
                                    const std::function<double()>& loss) {
  constexpr std::size_t kElements = 24;
  constexpr double h = 1.0 / 1024;
  std::vector<GradientReport> reports;
  for (const Argument& argument : arguments) {
    GradientReport report{call, option, argument.name};
    double scale = 1;
    for (const double g : argument.gradient) scale = std::max(scale, std::abs(g));
    const std::size_t n = argument.gradient.size();
    for (std::size_t i = 0; i < n; i += std::max<std::size_t>(1, n / kElements)) {
      const auto loss_at = [&](double by) {
        argument.add(i, by);
        const double value = loss();
        argument.add(i, -by);
        return value;
      };
      const double difference =
          (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
      const double error = std::abs(argument.gradient[i] - difference) / scale;
      // NaN counts as the largest.
      if (!(error <= report.error)) report.error = error;
      ++report.n_elements;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

// A mask for (T_q, T_k) keys: true hides, or is shown, or numbers are added and -inf hides.
struct MaskMemory {
  std::vector<char> flags;
  Tensor bias;
};

Mask draw_mask(Generator& generator, Mask::Kind kind, Shape shape, MaskMemory& memory) {
  const Tensor noise = drawn(generator, shape);
  const std::span<const double> x = noise.values<double>();
  if (kind != Mask::Kind::bias) {
    for (const double value : x)
      memory.flags.push_back((value > 0.4) == (kind == Mask::Kind::ignore));
    const ConstTensorView view(memory.flags.data(), DType::boolean, shape);
    return kind == Mask::Kind::keep ? Mask::keep(view) : Mask::ignore(view);
  }
  memory.bias = Tensor::copy_of(noise);
  for (double& value : values_of(memory.bias.view()))
    if (value > 1.2) value = -std::numeric_limits<double>::infinity();
  return Mask::bias(memory.bias);
}

Argument plain_argument(const std::string& name, const TensorView& value,
                        const TensorView& gradient) {
  return {name, [x = values_of(value)](std::size_t i, double by) { x[i] += by; },
          values_of(gradient)};
}

// ---- attention

struct AttentionCase {
  const char* option;
  AttentionOptions options{};
  std::optional<Mask::Kind> mask{}, second_mask{};
  std::size_t n_kv_heads = 4, d_v = 5;
  bool weights = false, average_weights = false;
};

std::vector<AttentionCase> attention_cases() {
  using Kind = Mask::Kind;
  std::vector<AttentionCase> all{{"plain"},
                                 {"scale", {.scale = -0.3}},
                                 {"causal", {.causal = CausalAlign::top_left}},
                                 {"causal, bottom right", {.causal = CausalAlign::bottom_right}},
                                 {"grouped heads"},
                                 {"wide values"},
                                 {"mask that keeps", {}, Kind::keep},
                                 {"mask that ignores", {}, Kind::ignore},
                                 {"bias", {}, Kind::bias},
                                 {"two masks", {}, Kind::bias, Kind::bias},
                                 {"keys that all see", {.n_always_visible = 2}, Kind::bias},
                                 {"dropout", {.dropout_p = 0.3, .dropout_seed = 7}},
                                 {"weights"},
                                 {"averaged weights", {.dropout_p = 0.2}}};
  for (AttentionCase& c : all) {
    const std::string name = c.option;
    if (name == "grouped heads") c.n_kv_heads = 2;
    if (name == "wide values") c.d_v = 19;
    c.weights = name == "weights";
    c.average_weights = name == "averaged weights";
  }
  return all;
}

std::vector<GradientReport> verify_attention_gradients(const AttentionCase& c,
                                                       Generator& generator) {
  constexpr std::size_t B = 2, H = 4, T_q = 5, T_k = 7, d = 6;
  Tensor q = drawn(generator, {B, H, T_q, d}), k = drawn(generator, {B, c.n_kv_heads, T_k, d});
  Tensor v = drawn(generator, {B, c.n_kv_heads, T_k, c.d_v}), o(DType::f64, {B, H, T_q, c.d_v});
  Tensor row_max(DType::f64, {B, H, T_q}), row_sum(DType::f64, {B, H, T_q});
  Tensor weights(DType::f64, {B, H, T_q, T_k}), average(DType::f64, {B, T_q, T_k});
  const Tensor d_o = drawn(generator, o.shape()), d_weights = drawn(generator, weights.shape()),
               d_average = drawn(generator, average.shape());
  AttentionOptions options = c.options;
  MaskMemory first, second;
  const std::size_t columns = T_k - options.n_always_visible;
  if (c.mask) options.mask = draw_mask(generator, *c.mask, {H, T_q, columns}, first);
  if (c.second_mask)
    options.second_mask = draw_mask(generator, *c.second_mask, {1, columns}, second);
  AttentionExtras extras;
  extras.row_max = row_max.view();
  extras.row_sum = row_sum.view();
  if (c.weights) extras.weights = weights.view();
  if (c.average_weights) extras.average_weights = average.view();
  const auto loss = [&] {
    scaled_dot_product_attention(q, k, v, options, o.view(), extras);
    double sum = dot(o, d_o);
    if (c.weights) sum += dot(weights, d_weights);
    if (c.average_weights) sum += dot(average, d_average);
    return sum;
  };
  loss();
  AttentionState state{d_o, o, row_max, row_sum, {}, {}};
  if (c.weights) state.d_weights = d_weights;
  if (c.average_weights) state.d_average_weights = d_average;
  Tensor dq(DType::f64, q.shape()), dk(DType::f64, k.shape()), dv(DType::f64, v.shape());
  Tensor d_first(DType::f64, first.bias.shape()), d_second(DType::f64, second.bias.shape());
  AttentionGradients gradients{dq.view(), dk.view(), dv.view(), {}, {}};
  std::vector<Argument> arguments{plain_argument("q", q.view(), dq.view()),
                                  plain_argument("k", k.view(), dk.view()),
                                  plain_argument("v", v.view(), dv.view())};
  if (c.mask == Mask::Kind::bias) {
    gradients.d_mask = d_first.view();
    arguments.push_back(plain_argument("mask", first.bias.view(), d_first.view()));
  }
  if (c.second_mask == Mask::Kind::bias) {
    gradients.d_second_mask = d_second.view();
    arguments.push_back(plain_argument("second_mask", second.bias.view(), d_second.view()));
  }
  scaled_dot_product_attention_backward(q, k, v, options, state, gradients);
  return compare("attention", c.option, arguments, loss);
}

// ---- the module

struct ModuleCase {
  const char* option;
  MultiheadAttentionOptions options{};
  bool batched = true;
  std::optional<Mask::Kind> attn_mask{}, padding{};
  bool causal = false, weights = false, per_head = false;
};

std::vector<ModuleCase> module_cases() {
  using Kind = Mask::Kind;
  const MultiheadAttentionOptions base{.embed_dim = 8, .num_heads = 4, .dtype = DType::f64};
  const auto with = [&base](auto change) {
    MultiheadAttentionOptions options = base;
    change(options);
    return options;
  };
  using O = MultiheadAttentionOptions;
  return {{"plain", base},
          {"bias = false", with([](O& o) { o.bias = false; })},
          {"add_bias_kv", with([](O& o) { o.add_bias_kv = true; })},
          {"add_zero_attn", with([](O& o) { o.add_zero_attn = true; })},
          {"kdim, vdim", with([](O& o) { o.kdim = 5, o.vdim = 11; })},
          {"num_kv_heads", with([](O& o) { o.num_kv_heads = 2; })},
          {"head_dim", with([](O& o) { o.head_dim = 3; })},
          {"qkv_proj", with([](O& o) { o.names = O::Names::fused; })},
          {"batch_first", with([](O& o) { o.batch_first = true; })},
          {"dropout", with([](O& o) { o.dropout = 0.3; })},
          {"unbatched", base, false},
          {"attn_mask that ignores", base, true, Kind::ignore},
          {"attn_mask that is added", base, true, Kind::bias},
          {"key_padding_mask", base, true, {}, Kind::ignore},
          {"both masks added", with([](O& o) { o.add_bias_kv = o.add_zero_attn = true; }), true,
           Kind::bias, Kind::bias},
          {"is_causal", base, true, {}, {}, true},
          {"averaged weights", base, true, {}, {}, false, true},
          {"weights", with([](O& o) { o.batch_first = true; }), true, {}, {}, false, true, true}};
}

Argument parameter_argument(MultiheadAttention& module, const NamedTensorView& gradient) {
  const auto add = [&module, name = gradient.name](std::size_t i, double by) {
    module.update([&](std::span<const NamedTensorView> parameters) {
      for (const NamedTensorView& p : parameters)
        if (p.name == name) values_of(p.view)[i] += by;
    });
  };
  return {gradient.name, add, values_of(gradient.view)};
}

std::vector<GradientReport> verify_module_gradients(const ModuleCase& c, Generator& generator) {
  constexpr std::size_t B = 2, T_q = 4, T_k = 6;
  MultiheadAttention module(c.options, generator);
  module.update([&](std::span<const NamedTensorView> parameters) {  // biases begin as zeros
    for (const NamedTensorView& p : parameters)
      if (p.view.rank() == 1) generator.normal(p.view, 0.0, 0.5);
  });
  const auto shape = [&](std::size_t T, std::size_t width) {
    if (!c.batched) return Shape{T, width};
    return c.options.batch_first ? Shape{B, T, width} : Shape{T, B, width};
  };
  const std::size_t E = c.options.embed_dim;
  Tensor query = drawn(generator, shape(T_q, E)),
         key = drawn(generator, shape(T_k, c.options.kdim.value_or(E))),
         value = drawn(generator, shape(T_k, c.options.vdim.value_or(E)));
  ForwardOptions options;
  options.need_weights = c.weights;
  options.average_attn_weights = !c.per_head;
  options.is_causal = c.causal;
  options.dropout_seed = 3;
  MaskMemory mask, padding;
  if (c.attn_mask) options.attn_mask = draw_mask(generator, *c.attn_mask, {T_q, T_k}, mask);
  if (c.padding) options.key_padding_mask = draw_mask(generator, *c.padding, {B, T_k}, padding);

  SavedForward saved;
  const ForwardResult result = module.forward(query, key, value, options, saved);
  const Tensor d_output = drawn(generator, result.output.shape());
  const Tensor d_weights = drawn(generator, result.weights ? result.weights->shape() : Shape{0});
  const auto loss = [&] {
    const ForwardResult r = module.forward(query, key, value, options);
    return dot(r.output, d_output) + (r.weights ? dot(*r.weights, d_weights) : 0.0);
  };
  ParameterGradients parameters(module);
  Tensor dq(DType::f64, query.shape()), dk(DType::f64, key.shape()), dv(DType::f64, value.shape());
  Tensor d_mask(DType::f64, mask.bias.shape()), d_padding(DType::f64, padding.bias.shape());
  InputGradients inputs{dq.view(), dk.view(), dv.view(), {}, {}};
  std::vector<Argument> arguments{plain_argument("query", query.view(), dq.view()),
                                  plain_argument("key", key.view(), dk.view()),
                                  plain_argument("value", value.view(), dv.view())};
  if (c.attn_mask == Mask::Kind::bias) {
    inputs.attn_mask = d_mask.view();
    arguments.push_back(plain_argument("attn_mask", mask.bias.view(), d_mask.view()));
  }
  if (c.padding == Mask::Kind::bias) {
    inputs.key_padding_mask = d_padding.view();
    arguments.push_back(plain_argument("key_padding_mask", padding.bias.view(), d_padding.view()));
  }
  OutputGradients d_result{d_output, {}};
  if (result.weights) d_result.weights = d_weights;
  module.backward(saved, d_result, parameters, inputs);
  for (const NamedTensorView& p : parameters.views())
    arguments.push_back(parameter_argument(module, p));
  return compare("module", c.option, arguments, loss);
}

}  // namespace

std::vector<GradientReport> verify_gradients(std::uint64_t seed) {
  Generator generator(seed);
  std::vector<GradientReport> reports;
  const auto add = [&](std::vector<GradientReport> more) {
    std::move(more.begin(), more.end(), std::back_inserter(reports));
  };
  for (const AttentionCase& c : attention_cases()) add(verify_attention_gradients(c, generator));
  for (const ModuleCase& c : module_cases()) add(verify_module_gradients(c, generator));
  return reports;
}

}  // namespace headwise::cli
