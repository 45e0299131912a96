#include "module/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/checked.h"
#include "core/convert.h"

namespace headwise::module {
namespace {

using Names = MultiheadAttentionOptions::Names;

void check_positive(const char* argument, std::size_t value) {
  if (value == 0) core::throw_argument(argument, "0", "at least 1");
}

std::size_t checked_head_dim(const MultiheadAttentionOptions& options) {
  if (options.head_dim) {
    check_positive("head_dim", *options.head_dim);
    return *options.head_dim;
  }
  if (options.embed_dim % options.num_heads != 0)
    core::throw_argument("embed_dim",
                         std::to_string(options.embed_dim) + ", which num_heads " +
                             std::to_string(options.num_heads) + " does not divide",
                         "a multiple of num_heads, or head_dim given");
  return options.embed_dim / options.num_heads;
}

// The largest table has to be addressable, so that no later product of sizes overflows.
void check_total(const Sizes& s, const MultiheadAttentionOptions& options) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
  const auto q = core::checked_mul(s.n_heads, s.d_head);
  const std::uint64_t widest = std::max({s.embed_dim, s.kdim, s.vdim});
  const auto rows = q ? core::checked_mul(*q, 4) : std::nullopt;
  const auto elements = rows ? core::checked_mul(*rows, widest) : std::nullopt;
  const auto bytes = elements ? core::checked_mul(*elements, sizeof(double)) : std::nullopt;
  if (!bytes || *bytes > kMax)
    core::throw_argument("embed_dim",
                         std::to_string(options.embed_dim) + " with " + std::to_string(s.n_heads) +
                             " heads of " + std::to_string(s.d_head),
                         "tables whose size in bytes fits the address space");
}

void check_fused(const MultiheadAttentionOptions& options, const Sizes& sizes) {
  if (options.names != Names::fused) return;
  if (!sizes.packed)
    core::throw_argument(
        "kdim, vdim", std::to_string(sizes.kdim) + ", " + std::to_string(sizes.vdim),
        "embed_dim " + std::to_string(sizes.embed_dim) + ", because qkv_proj.weight is one table");
  if (options.add_bias_kv)
    core::throw_argument("add_bias_kv", "true", "false with the names of the bias-free module");
}

// torch.nn.init's gain of kaiming_uniform_ for a = sqrt(5), with the same roundings.
double linear_bound(double fan_in) {
  const double a = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1.0 + a * a));
  return std::sqrt(3.0) * (gain / std::sqrt(fan_in));
}

double xavier_bound(double fan_in, double fan_out) {
  return std::sqrt(3.0) * std::sqrt(2.0 / (fan_in + fan_out));
}

void fill_zero(const ConstTensorView& view) {
  std::memset(const_cast<void*>(view.data), 0, element_count(view.shape) * size_of(view.dtype));
}

ConstTensorView rows_of(const ConstTensorView& view, std::size_t first, std::size_t n) {
  ConstTensorView part = view;
  part.data = static_cast<const std::byte*>(view.data) +
              first * static_cast<std::size_t>(view.strides[0]) * size_of(view.dtype);
  part.shape[0] = n;
  return part;
}

}  // namespace

Sizes check_options(const MultiheadAttentionOptions& options) {
  check_positive("embed_dim", options.embed_dim);
  check_positive("num_heads", options.num_heads);
  Sizes s;
  s.embed_dim = options.embed_dim;
  s.kdim = options.kdim.value_or(options.embed_dim);
  s.vdim = options.vdim.value_or(options.embed_dim);
  check_positive("kdim", s.kdim);
  check_positive("vdim", s.vdim);
  s.n_heads = options.num_heads;
  s.d_head = checked_head_dim(options);
  s.n_kv_heads = options.num_kv_heads.value_or(options.num_heads);
  check_positive("num_kv_heads", s.n_kv_heads);
  if (s.n_heads % s.n_kv_heads != 0)
    core::throw_argument("num_kv_heads", std::to_string(s.n_kv_heads),
                         "a divisor of num_heads " + std::to_string(s.n_heads));
  core::check_probability("dropout", options.dropout);
  if (!is_floating(options.dtype))
    core::throw_dtype("dtype", options.dtype, "f32, f64, bf16 or f16");
  if (options.weight_dtype && *options.weight_dtype != options.dtype &&
      !(*options.weight_dtype == DType::bf16 && options.dtype == DType::f32))
    core::throw_dtype(
        "weight_dtype", *options.weight_dtype,
        std::string(name_of(options.dtype)) +
            (options.dtype == DType::f32 ? ", the module's, or bf16" : ", the module's"));
  s.packed = s.kdim == s.embed_dim && s.vdim == s.embed_dim;
  check_total(s, options);
  check_fused(options, s);
  s.q_width = s.n_heads * s.d_head;
  s.kv_width = s.n_kv_heads * s.d_head;
  return s;
}

Parameters::Parameters(const MultiheadAttentionOptions& options, const Sizes& sizes)
    : dtype_(options.dtype),
      table_dtype_(options.weight_dtype.value_or(options.dtype)),
      sizes_(sizes),
      fused_(options.names == Names::fused) {
  const std::size_t E = sizes.embed_dim, rows = sizes.q_width + 2 * sizes.kv_width;
  if (fused_) {
    add("qkv_proj.weight", {rows, E});
    add("out_proj.weight", {E, sizes.q_width});
    return;
  }
  if (sizes.packed) {
    add("in_proj_weight", {rows, E});
  } else {
    add("q_proj_weight", {sizes.q_width, E});
    add("k_proj_weight", {sizes.kv_width, sizes.kdim});
    add("v_proj_weight", {sizes.kv_width, sizes.vdim});
  }
  if (options.bias) add("in_proj_bias", {rows});
  if (options.add_bias_kv) {
    add("bias_k", {1, 1, sizes.kv_width});
    add("bias_v", {1, 1, sizes.kv_width});
  }
  add("out_proj.weight", {E, sizes.q_width});
  if (options.bias) add("out_proj.bias", {E});
}

void Parameters::add(std::string name, Shape shape) {
  names_.push_back(std::move(name));
  const bool table = shape.size() == 2;
  values_.push_back(std::make_shared<Tensor>(table ? table_dtype_ : dtype_, shape));
}

std::size_t Parameters::index_of(const std::string& name) const {
  std::size_t i = 0;
  while (i < names_.size() && names_[i] != name) ++i;
  return i;
}

bool Parameters::has(const std::string& name) const { return index_of(name) < size(); }

ConstTensorView Parameters::view(const std::string& name) const {
  const std::size_t i = index_of(name);
  return i < size() ? view(i) : ConstTensorView{};
}

// nn.Linear's reset_parameters.
void Parameters::draw_linear(Generator& generator, const std::string& weight,
                             const std::string& bias) {
  Tensor& w = *values_[index_of(weight)];
  const auto fan_in = static_cast<double>(w.shape()[1]);
  const double bound = linear_bound(fan_in);
  generator.uniform(w.view(), -bound, bound);
  if (!has(bias)) return;
  const double bias_bound = 1.0 / std::sqrt(fan_in);
  generator.uniform(values_[index_of(bias)]->view(), -bias_bound, bias_bound);
}

void Parameters::draw(Generator& generator) {
  if (fused_) {
    draw_linear(generator, "qkv_proj.weight", "");
    draw_linear(generator, "out_proj.weight", "");
    return;
  }
  draw_linear(generator, "out_proj.weight", "out_proj.bias");
  for (const char* name : {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"}) {
    if (!has(name)) continue;
    Tensor& w = *values_[index_of(name)];
    const double bound =
        xavier_bound(static_cast<double>(w.shape()[1]), static_cast<double>(w.shape()[0]));
    generator.uniform(w.view(), -bound, bound);
  }
  // The output bias was drawn, so that the generator is where torch's is, and is zero all the same.
  for (const char* name : {"in_proj_bias", "out_proj.bias"})
    if (has(name)) fill_zero(view(name));
  for (const char* name : {"bias_k", "bias_v"})
    if (has(name)) {
      const auto fan = static_cast<double>(sizes_.kv_width);  // both fans of a (1, 1, width) tensor
      generator.normal(values_[index_of(name)]->view(), 0.0, std::sqrt(2.0 / (fan + fan)));
    }
}

std::shared_ptr<Tensor> Parameters::converted_value(std::size_t i,
                                                    const ConstTensorView& value) const {
  core::check_view(names_[i], value);
  if (!is_floating(value.dtype)) core::throw_dtype(names_[i], value.dtype, "f32, f64, bf16 or f16");
  core::check_shape(names_[i], value.shape, values_[i]->shape());
  return std::make_shared<Tensor>(core::converted(value, values_[i]->dtype()));
}

void Parameters::set(const std::string& name, const ConstTensorView& value) {
  const std::size_t i = index_of(name);
  if (i == size()) {
    std::string all;
    for (const std::string& known : names_) all += (all.empty() ? "" : ", ") + known;
    core::throw_argument("name", "\"" + name + "\"", "one of " + all);
  }
  values_[i] = converted_value(i, value);
}

void Parameters::set_all(std::span<const NamedView> state) {
  std::vector<const NamedView*> found(size(), nullptr);
  std::string unexpected, twice, missing;
  const auto list = [](std::string& text, const std::string& name) {
    text += (text.empty() ? "" : ", ") + name;
  };
  for (const NamedView& entry : state) {
    const std::size_t i = index_of(entry.name);
    if (i == size())
      list(unexpected, entry.name);
    else if (found[i] != nullptr)
      list(twice, entry.name);
    else
      found[i] = &entry;
  }
  for (std::size_t i = 0; i < size(); ++i)
    if (found[i] == nullptr) list(missing, names_[i]);
  std::string wrong;
  if (!missing.empty()) list(wrong, "missing " + missing);
  if (!unexpected.empty()) list(wrong, "unexpected " + unexpected);
  if (!twice.empty()) list(wrong, "twice " + twice);
  if (!wrong.empty()) {
    std::string all;
    for (const std::string& name : names_) list(all, name);
    core::throw_argument("state", wrong, "each of " + all + " once");
  }
  std::vector<std::shared_ptr<Tensor>> values;
  for (std::size_t i = 0; i < size(); ++i) values.push_back(converted_value(i, found[i]->view));
  values_ = std::move(values);
}

std::vector<NamedTensorView> Parameters::writable() {
  std::vector<NamedTensorView> all;
  for (std::size_t i = 0; i < size(); ++i) {
    if (values_[i].use_count() != 1)  // another object has it, too
      values_[i] = std::make_shared<Tensor>(Tensor::copy_of(values_[i]->view()));
    all.push_back({names_[i], values_[i]->view()});
  }
  return all;
}

std::string Parameters::weight_name(std::size_t i) const {
  constexpr const char* kSeparate[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
  if (i == 3) return "out_proj.weight";
  if (!sizes_.packed) return kSeparate[i];
  return fused_ ? "qkv_proj.weight" : "in_proj_weight";
}

std::string Parameters::bias_name(std::size_t i) const {
  const char* name = i == 3 ? "out_proj.bias" : "in_proj_bias";
  return has(name) ? name : "";
}

Parameters::Projection Parameters::input_projection(std::size_t i) const {
  const std::size_t widths[] = {sizes_.q_width, sizes_.kv_width, sizes_.kv_width};
  std::size_t first = 0;
  for (std::size_t j = 0; j < i; ++j) first += widths[j];
  Projection p;
  p.weight = view(weight_name(i));
  if (sizes_.packed) p.weight = rows_of(p.weight, first, widths[i]);
  if (has("in_proj_bias")) p.bias = rows_of(view("in_proj_bias"), first, widths[i]);
  return p;
}

Parameters::Projection Parameters::output_projection() const {
  return {view("out_proj.weight"), view("out_proj.bias")};
}

}  // namespace headwise::module
