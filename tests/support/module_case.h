// A module with one call of it, drawn from all options, compared with the definition.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/multihead_attention.h"
#include "support/module_reference.h"
#include "support/tensors.h"
#include "support/weight_rounding.h"

namespace headwise::test {

// The values of a call's options, each by its number, so that pairs of them can be counted.
struct ModuleCase {
  enum Option {
    dtype,       // f32, f64, bf16, f16
    layout,      // sequence first, batch first, unbatched
    bias,        // no, yes
    bias_kv,     // no, yes
    zero_attn,   // no, yes
    widths,      // kdim and vdim are embed_dim; both differ
    kv_heads,    // all; half as many
    head_dim,    // embed_dim / num_heads; 5
    attn_mask,   // none; 2-D ignore, keep, bias; 3-D ignore, bias; 4-D ignore (one for all heads),
                 // bias
    padding,     // none, ignore, keep, bias
    mask_dtype,  // the module's; f32 beside 16-bit modules
    causal,      // no, yes
    weights,     // none, averaged, per head
    mode,        // eval, training with dropout
    source,      // self-attention, other keys and values
    n_options,
  };
  static constexpr int kValues[n_options] = {4, 3, 2, 2, 2, 2, 2, 2, 8, 4, 2, 2, 3, 2, 2};
  int value[n_options] = {};

  int operator[](Option o) const { return value[o]; }
  std::string text() const {
    std::string s = "options";
    for (int v : value) s += " " + std::to_string(v);
    return s;
  }
};

inline ModuleCase random_case(std::mt19937& engine) {
  ModuleCase c;
  for (int o = 0; o < ModuleCase::n_options; ++o)
    c.value[o] = std::uniform_int_distribution<int>(0, ModuleCase::kValues[o] - 1)(engine);
  return c;
}

// Finite, with rounding of `unit` relative to `scale`, or one step of the result's dtype away.
inline void expect_close(double found, double expected, double scale, DType dtype,
                         const std::string& where) {
  const double relative = dtype == DType::f64 ? 1e-14 : 2e-6;
  double bound = (relative + module_rounding(dtype)) * scale;
  // One unit in the last place of the correctly rounded result, which is half a unit away itself.
  if (size_of(dtype) == 2)
    bound += 1.5 * epsilon(dtype) * std::abs(expected) + (dtype == DType::f16 ? 0x1p-24 : 0);
  ASSERT_NEAR(found, expected, bound) << where << " of scale " << scale;
}

class ModuleCall {
 public:
  explicit ModuleCall(const ModuleCase& c, unsigned seed = 1) : case_(c), engine_(seed) {
    draw_sizes();
    Generator generator(seed);
    module_.emplace(module_options(), generator);
    fill_biases();
    draw_inputs();
    draw_masks();
    options_.need_weights = c[ModuleCase::weights] != 0;
    options_.average_attn_weights = c[ModuleCase::weights] == 1;
    options_.is_causal = c[ModuleCase::causal] == 1;
    options_.dropout_seed = seed;
    module_->train(c[ModuleCase::mode] == 1);
  }

  MultiheadAttention& module() { return *module_; }
  const ForwardOptions& options() const { return options_; }
  const Tensor& query() const { return query_; }
  const Tensor& key() const { return self() ? query_ : key_; }
  const Tensor& value() const { return self() ? query_ : value_; }
  ForwardResult run() const {
    return module_->forward(query_.view(), key().view(), value().view(), options_);
  }

  void check() const {
    SCOPED_TRACE(case_.text());
    const ForwardResult found = run();
    ModuleResult expected =
        ModuleReference(*module_, options_).forward(query_.view(), key().view(), value().view());
    check_output(found.output, expected);
    check_weights(found.weights, expected);
  }

 private:
  static constexpr std::size_t kHeads = 4;

  bool batched() const { return case_[ModuleCase::layout] != 2; }
  bool self() const { return case_[ModuleCase::source] == 0 && case_[ModuleCase::widths] == 0; }
  std::size_t pick(std::initializer_list<std::size_t> values) {
    return values
        .begin()[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(engine_)];
  }
  unsigned seed() { return static_cast<unsigned>(engine_()); }

  void draw_sizes() {
    B_ = batched() ? pick({1, 2, 3}) : 1;
    T_q_ = pick({1, 2, 5, 17});
    T_k_ = self() ? T_q_ : pick({1, 3, 6, 33});
  }

  MultiheadAttentionOptions module_options() const {
    constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
    MultiheadAttentionOptions o;
    o.embed_dim = 12;
    o.num_heads = kHeads;
    o.dtype = kTypes[case_[ModuleCase::dtype]];
    o.batch_first = case_[ModuleCase::layout] == 1;
    o.bias = case_[ModuleCase::bias] == 1;
    o.add_bias_kv = case_[ModuleCase::bias_kv] == 1;
    o.add_zero_attn = case_[ModuleCase::zero_attn] == 1;
    if (case_[ModuleCase::widths] == 1) o.kdim = 7, o.vdim = 35;
    if (case_[ModuleCase::kv_heads] == 1) o.num_kv_heads = kHeads / 2;
    if (case_[ModuleCase::head_dim] == 1) o.head_dim = 5;
    o.dropout = case_[ModuleCase::mode] == 1 ? 0.3 : 0.0;
    return o;
  }

  // New biases are zero, which would hide a mistake.
  void fill_biases() {
    for (const char* name : {"in_proj_bias", "out_proj.bias"})
      for (const NamedView& p : module_->parameters())
        if (p.name == name)
          module_->set_parameter(name, gaussian(p.view.dtype, p.view.shape, seed(), 0.5).view());
  }

  Shape input_shape(std::size_t T, std::size_t width) const {
    if (!batched()) return {T, width};
    return module_->options().batch_first ? Shape{B_, T, width} : Shape{T, B_, width};
  }

  void draw_inputs() {
    const MultiheadAttentionOptions& o = module_->options();
    query_ = gaussian(o.dtype, input_shape(T_q_, o.embed_dim), seed());
    key_ = gaussian(o.dtype, input_shape(T_k_, o.kdim.value_or(o.embed_dim)), seed());
    value_ = gaussian(o.dtype, input_shape(T_k_, o.vdim.value_or(o.embed_dim)), seed());
  }

  // A third of the keys hidden.
  Mask draw_mask(Mask::Kind kind, Shape shape, Tensor& memory) {
    const DType module_dtype = module_->options().dtype;
    const bool narrow = size_of(module_dtype) == 2;
    const DType bias_dtype =
        narrow && case_[ModuleCase::mask_dtype] == 1 ? DType::f32 : module_dtype;
    memory = Tensor(kind == Mask::Kind::bias ? bias_dtype : DType::boolean, shape);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const bool hidden = engine_() % 3 == 0;
      double x = hidden == (kind == Mask::Kind::ignore) ? 1.0 : 0.0;
      if (kind == Mask::Kind::bias)
        x = hidden ? -kInfinity : std::normal_distribution<double>()(engine_);
      put(memory.view(), i, x);
    }
    if (kind == Mask::Kind::keep) return Mask::keep(memory.view());
    return kind == Mask::Kind::ignore ? Mask::ignore(memory.view()) : Mask::bias(memory.view());
  }

  void draw_masks() {
    using Kind = Mask::Kind;
    constexpr Kind kKinds[] = {Kind::keep,   Kind::ignore, Kind::keep,   Kind::bias,
                               Kind::ignore, Kind::bias,   Kind::ignore, Kind::bias};
    const Shape shapes[] = {
        {T_q_, T_k_}, {B_ * kHeads, T_q_, T_k_}, {B_, 1, T_q_, T_k_}, {B_, kHeads, T_q_, T_k_}};
    constexpr int kShape[] = {0, 0, 0, 0, 1, 1, 2, 3};
    if (const int v = case_[ModuleCase::attn_mask]; v > 0)
      options_.attn_mask = draw_mask(kKinds[v], shapes[kShape[v]], attn_mask_);
    constexpr Kind kPadding[] = {Kind::keep, Kind::ignore, Kind::keep, Kind::bias};
    if (const int v = case_[ModuleCase::padding]; v > 0)
      options_.key_padding_mask =
          draw_mask(kPadding[v], batched() ? Shape{B_, T_k_} : Shape{T_k_}, padding_);
  }

  void check_output(const Tensor& found, const ModuleResult& expected) const {
    ASSERT_EQ(found.shape(), query_.shape());
    ASSERT_EQ(found.dtype(), module_->options().dtype);
    const bool seq_first = batched() && !module_->options().batch_first;
    for (std::size_t b = 0; b < B_; ++b)
      for (std::size_t t = 0; t < T_q_; ++t)
        for (std::size_t e = 0; e < expected.E; ++e) {
          const std::size_t row = seq_first ? t * B_ + b : b * T_q_ + t;
          expect_close(get(found.view(), row * expected.E + e),
                       expected.output[(b * T_q_ + t) * expected.E + e],
                       expected.scale[b * T_q_ + t], found.dtype(),
                       "output " + std::to_string(b) + ", " + std::to_string(t));
        }
  }

  void check_weights(const std::optional<Tensor>& found, const ModuleResult& expected) const {
    ASSERT_EQ(found.has_value(), options_.need_weights);
    if (!found) return;
    const bool average = options_.average_attn_weights;
    Shape shape;
    if (batched()) shape.push_back(B_);
    if (!average) shape.push_back(kHeads);
    shape.push_back(T_q_);
    shape.push_back(expected.S);
    ASSERT_EQ(found->shape(), shape);
    for (std::size_t i = 0; i < found->size(); ++i) {
      const std::size_t j = i % expected.S, t = i / expected.S % T_q_, b = i / expected.S / T_q_;
      const double wanted = average ? expected.average_weight(b, t, j) : expected.weights[i];
      expect_close(get(found->view(), i), wanted, 1.5, found->dtype(),
                   "weight " + std::to_string(i));
    }
  }

  ModuleCase case_;
  std::mt19937 engine_;
  std::size_t B_ = 1, T_q_ = 1, T_k_ = 1;
  std::optional<MultiheadAttention> module_;
  Tensor query_, key_, value_, attn_mask_, padding_;
  ForwardOptions options_;
};

}  // namespace headwise::test
