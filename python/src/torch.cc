// What headwise.torch calls: the library on tensors whose memory and gradients torch keeps.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "errors.h"
#include "gil.h"
#include "headwise/attention.h"
#include "headwise/attention_backward.h"
#include "headwise/multihead_attention.h"
#include "headwise/random.h"

namespace headwise::python {
namespace {

constexpr auto kTorchKeepsGradients = Input::Gradients::kept_elsewhere;

// A tensor of torch's that the library writes into; None is one that nobody wants.
class Output {
 public:
  Output(const char* name, nb::handle tensor) {
    if (tensor.is_none()) return;
    const ConstTensorView& view = input_.emplace(name, tensor, kTorchKeepsGradients).view();
    view_ = TensorView(const_cast<void*>(view.data), view.dtype, view.shape, view.strides);
  }
  const TensorView& view() const { return view_; }

 private:
  std::optional<Input> input_;
  TensorView view_;
};

class OptionalMask {
 public:
  OptionalMask(const char* name, nb::handle tensor, Mask::Kind boolean) {
    if (tensor.is_none()) return;
    mask_ = mask_of(name, input_.emplace(name, tensor, kTorchKeepsGradients), boolean);
  }
  const std::optional<Mask>& mask() const { return mask_; }

 private:
  std::optional<Input> input_;
  std::optional<Mask> mask_;
};

AttentionOptions options_of(const OptionalMask& mask, double dropout_p, std::uint64_t dropout_seed,
                            bool is_causal, std::optional<double> scale, bool enable_gqa) {
  AttentionOptions options;
  options.mask = mask.mask();
  options.dropout_p = dropout_p;
  options.dropout_seed = dropout_seed;
  if (is_causal) options.causal = CausalAlign::top_left;
  options.scale = scale;
  options.enable_gqa = enable_gqa;
  return options;
}

void attend(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask,
            double dropout_p, std::uint64_t dropout_seed, bool is_causal,
            std::optional<double> scale, bool enable_gqa, nb::handle output, nb::handle row_max,
            nb::handle row_sum, nb::handle log_sum_exp, nb::handle weights) {
  const Input q("query", query, kTorchKeepsGradients), k("key", key, kTorchKeepsGradients),
      v("value", value, kTorchKeepsGradients);
  const OptionalMask mask("attn_mask", attn_mask, Mask::Kind::keep);
  const Output o("output", output), m("row_max", row_max), l("row_sum", row_sum),
      lse("log_sum_exp", log_sum_exp), w("weights", weights);
  const AttentionOptions options =
      options_of(mask, dropout_p, dropout_seed, is_causal, scale, enable_gqa);
  AttentionExtras extras;
  extras.row_max = m.view();
  extras.row_sum = l.view();
  extras.log_sum_exp = lse.view();
  extras.weights = w.view();
  with_python_names([&] {
    const ReleaseGil unlocked;
    scaled_dot_product_attention(q.view(), k.view(), v.view(), options, o.view(), extras);
  });
}

void attend_backward(nb::handle grad_output, nb::handle query, nb::handle key, nb::handle value,
                     nb::handle attn_mask, double dropout_p, std::uint64_t dropout_seed,
                     bool is_causal, std::optional<double> scale, bool enable_gqa,
                     nb::handle output, nb::handle row_max, nb::handle row_sum, nb::handle d_query,
                     nb::handle d_key, nb::handle d_value, nb::handle d_mask,
                     nb::handle grad_weights) {
  const Input d_o("grad_output", grad_output, kTorchKeepsGradients),
      q("query", query, kTorchKeepsGradients), k("key", key, kTorchKeepsGradients),
      v("value", value, kTorchKeepsGradients), o("output", output, kTorchKeepsGradients),
      m("row_max", row_max, kTorchKeepsGradients), l("row_sum", row_sum, kTorchKeepsGradients);
  const OptionalMask mask("attn_mask", attn_mask, Mask::Kind::keep);
  std::optional<Input> d_w;
  AttentionState state{d_o.view(), o.view(), m.view(), l.view()};
  if (!grad_weights.is_none())
    state.d_weights = d_w.emplace("grad_weights", grad_weights, kTorchKeepsGradients).view();
  const Output dq("d_query", d_query), dk("d_key", d_key), dv("d_value", d_value),
      d_bias("d_mask", d_mask);
  const AttentionOptions options =
      options_of(mask, dropout_p, dropout_seed, is_causal, scale, enable_gqa);
  with_python_names([&] {
    const ReleaseGil unlocked;
    scaled_dot_product_attention_backward(q.view(), k.view(), v.view(), options, state,
                                          {dq.view(), dk.view(), dv.view(), d_bias.view(), {}});
  });
}

// A module made of torch's parameters, with the tables as the kernels read them. torch counts most
// changes of a tensor (Tensor._version), and its caller asks for that; not counted are those
// through Tensor.data. What such code does to a table (scaling, clipping, moving averages, whole
// rows or columns set to 0) shows in a sample of it: one element of every row, in another column
// each time.
class PackedModule {
 public:
  PackedModule(std::int64_t num_heads, bool add_zero_attn, bool batch_first,
               const std::vector<std::string>& names, const nb::list& parameters) {
    Generator unused(0);
    const std::vector<Input> tensors = inputs(parameters);
    std::vector<NamedView> state;
    MultiheadAttentionOptions options;
    options.num_heads = static_cast<std::size_t>(num_heads);
    options.add_zero_attn = add_zero_attn;
    options.batch_first = batch_first;
    options.bias = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const ConstTensorView& view = tensors.at(i).view();
      state.push_back({names[i], view});
      if (names[i] == "out_proj.weight") options.embed_dim = view.shape[0];
      if (names[i] == "k_proj_weight") options.kdim = view.shape[1];
      if (names[i] == "v_proj_weight") options.vdim = view.shape[1];
      if (names[i] == "bias_k") options.add_bias_kv = true;
      if (names[i] == "in_proj_bias") options.bias = true;
    }
    options.dtype = state.front().view.dtype;
    const ReleaseGil unlocked;
    module_ = std::make_unique<MultiheadAttention>(options, unused);
    module_->load_state_dict(state);
    module_->eval();
    for (const NamedView& parameter : state) samples_.push_back(sample(parameter.view));
  }

  // Whether the tensors look as they did when the tables were made.
  bool is_current(const nb::list& parameters) const {
    const std::vector<Input> tensors = inputs(parameters);
    if (tensors.size() != samples_.size()) return false;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (sample(tensors[i].view()) != samples_[i]) return false;
    return true;
  }

  void forward(nb::handle query, nb::handle key, nb::handle value, nb::handle key_padding_mask,
               nb::handle attn_mask, bool average_attn_weights, bool is_causal, nb::handle output,
               nb::handle weights) const {
    const Input q("query", query, kTorchKeepsGradients), k("key", key, kTorchKeepsGradients),
        v("value", value, kTorchKeepsGradients);
    const OptionalMask padding("key_padding_mask", key_padding_mask, Mask::Kind::ignore),
        mask("attn_mask", attn_mask, Mask::Kind::ignore);
    const Output o("output", output), w("weights", weights);
    ForwardOptions options;
    options.key_padding_mask = padding.mask();
    options.attn_mask = mask.mask();
    options.need_weights = !weights.is_none();
    options.average_attn_weights = average_attn_weights;
    options.is_causal = is_causal;
    const ReleaseGil unlocked;
    module_->forward(q.view(), k.view(), v.view(), options, o.view(), w.view());
  }

 private:
  static std::vector<Input> inputs(const nb::list& parameters) {
    std::vector<Input> tensors;
    tensors.reserve(parameters.size());
    for (nb::handle parameter : parameters)
      tensors.emplace_back("parameter", parameter, kTorchKeepsGradients);
    return tensors;
  }

  static std::vector<std::byte> sample(const ConstTensorView& view) {
    const std::size_t rows = view.rank() < 2 ? 1 : view.shape.from_back(1);
    const std::size_t columns = view.shape.from_back(0), bytes = size_of(view.dtype);
    const std::size_t n = rows == 1 ? columns : rows;  // a bias is compared whole
    std::vector<std::byte> found(n * bytes);
    const auto* data = static_cast<const std::byte*>(view.data);
    const std::ptrdiff_t row_stride = view.rank() < 2 ? 0 : view.strides.from_back(1);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t row = rows == 1 ? 0 : i, column = i % columns;
      const auto offset = static_cast<std::ptrdiff_t>(row) * row_stride +
                          static_cast<std::ptrdiff_t>(column) * view.strides.from_back(0);
      std::memcpy(&found[i * bytes], data + offset * static_cast<std::ptrdiff_t>(bytes), bytes);
    }
    return found;
  }

  std::unique_ptr<MultiheadAttention> module_;
  std::vector<std::vector<std::byte>> samples_;
};

}  // namespace

void bind_torch(nb::module_& m) {
  using namespace nb::literals;
  m.def("_attend", &attend, "query"_a, "key"_a, "value"_a, "attn_mask"_a.none(), "dropout_p"_a,
        "dropout_seed"_a, "is_causal"_a, "scale"_a.none(), "enable_gqa"_a, "output"_a,
        "row_max"_a.none() = nb::none(), "row_sum"_a.none() = nb::none(),
        "log_sum_exp"_a.none() = nb::none(), "weights"_a.none() = nb::none());
  m.def("_attend_backward", &attend_backward, "grad_output"_a, "query"_a, "key"_a, "value"_a,
        "attn_mask"_a.none(), "dropout_p"_a, "dropout_seed"_a, "is_causal"_a, "scale"_a.none(),
        "enable_gqa"_a, "output"_a, "row_max"_a, "row_sum"_a, "d_query"_a.none(), "d_key"_a.none(),
        "d_value"_a.none(), "d_mask"_a.none(), "grad_weights"_a.none() = nb::none());
  nb::class_<PackedModule>(m, "_PackedModule")
      .def(nb::init<std::int64_t, bool, bool, const std::vector<std::string>&, const nb::list&>(),
           "num_heads"_a, "add_zero_attn"_a, "batch_first"_a, "names"_a, "parameters"_a)
      .def("is_current", &PackedModule::is_current, "parameters"_a)
      .def("forward", &PackedModule::forward, "query"_a, "key"_a, "value"_a,
           "key_padding_mask"_a.none(), "attn_mask"_a.none(), "average_attn_weights"_a,
           "is_causal"_a, "output"_a, "weights"_a.none());
}

}  // namespace headwise::python
