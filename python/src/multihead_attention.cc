#include "headwise/multihead_attention.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "gil.h"
#include "headwise/error.h"
#include "headwise/random.h"
#include "module.h"

namespace headwise::python {
namespace {

std::size_t size_argument(const char* name, std::int64_t n) {
  if (n < 1) throw ArgumentError(name, std::to_string(n), "at least 1");
  return static_cast<std::size_t>(n);
}

std::optional<std::size_t> size_argument(const char* name, std::optional<std::int64_t> n) {
  if (!n) return std::nullopt;
  return size_argument(name, *n);
}

// The GIL stays held while parameters are drawn: it is what guards the process's generator, also
// across fork().
void construct(Module* self, std::int64_t embed_dim, std::int64_t num_heads, nb::handle dropout,
               bool bias, bool add_bias_kv, bool add_zero_attn, std::optional<std::int64_t> kdim,
               std::optional<std::int64_t> vdim, bool batch_first, nb::handle dtype) {
  MultiheadAttentionOptions options;
  options.embed_dim = size_argument("embed_dim", embed_dim);
  options.num_heads = size_argument("num_heads", num_heads);
  options.dropout = probability_argument("dropout", dropout);
  options.bias = bias;
  options.add_bias_kv = add_bias_kv;
  options.add_zero_attn = add_zero_attn;
  options.kdim = size_argument("kdim", kdim);
  options.vdim = size_argument("vdim", vdim);
  options.batch_first = batch_first;
  options.dtype = dtype_argument(dtype);
  new (self) Module{std::make_shared<MultiheadAttention>(options)};
}

// A module with these options and parameters, without a draw from the process's generator.
std::shared_ptr<MultiheadAttention> module_with(const MultiheadAttentionOptions& options,
                                                const std::vector<NamedView>& parameters) {
  Generator unused(0);
  auto module = std::make_shared<MultiheadAttention>(options, unused);
  module->load_state_dict(parameters);
  return module;
}

nb::tuple forward(const Module& self, nb::handle query, nb::handle key, nb::handle value,
                  nb::handle key_padding_mask, bool need_weights, nb::handle attn_mask,
                  bool average_attn_weights, bool is_causal) {
  const Inputs inputs(query, key, value);
  std::optional<Input> padding, mask;
  ForwardOptions options;
  if (!key_padding_mask.is_none())
    options.key_padding_mask =
        mask_of("key_padding_mask", padding.emplace("key_padding_mask", key_padding_mask),
                Mask::Kind::ignore);
  if (!attn_mask.is_none())
    options.attn_mask =
        mask_of("attn_mask", mask.emplace("attn_mask", attn_mask), Mask::Kind::ignore);
  options.need_weights = need_weights;
  options.average_attn_weights = average_attn_weights;
  options.is_causal = is_causal;
  const std::shared_ptr<const MultiheadAttention> module = self.now;
  if (module->training() && module->options().dropout > 0.0)
    options.dropout_seed = default_generator().next_u64();

  ForwardResult result = [&] {
    const ReleaseGil unlocked;
    return module->forward(inputs.q(), inputs.k(), inputs.v(), options);
  }();
  nb::object weights = nb::none();
  if (result.weights) weights = array_like(query, std::move(*result.weights));
  return nb::make_tuple(array_like(query, std::move(result.output)), weights);
}

nb::dict state_dict(const Module& self) {
  nb::dict state;
  for (const NamedView& parameter : self.now->parameters())
    state[parameter.name.c_str()] = numpy_array(Tensor::copy_of(parameter.view));
  return state;
}

// Tensors that require gradients, as a torch module's parameters do, hold values all the same.
nb::object without_gradient(nb::handle value) {
  if (nb::hasattr(value, "detach")) return value.attr("detach")();
  return nb::borrow(value);
}

void load_state_dict(Module& self, const nb::mapping& state) {
  std::vector<std::string> names;
  std::vector<Input> values;
  for (nb::handle item : state.items()) {
    if (!nb::try_cast(item[0], names.emplace_back()))
      throw DTypeError("state_dict", "the key " + nb::cast<std::string>(nb::repr(item[0])),
                       "names");
    values.emplace_back(names.back().c_str(), without_gradient(item[1]));
  }
  std::vector<NamedView> parameters;
  for (std::size_t i = 0; i < names.size(); ++i) parameters.push_back({names[i], values[i].view()});
  const std::shared_ptr<const MultiheadAttention> old = self.now;
  std::shared_ptr<MultiheadAttention> loaded = [&] {
    const ReleaseGil unlocked;
    return module_with(old->options(), parameters);
  }();
  loaded->train(self.now->training());
  self.now = std::move(loaded);
}

Module load(const std::filesystem::path& path, std::int64_t num_heads, const std::string& prefix,
            nb::handle dropout, bool batch_first) {
  const std::size_t n_heads = size_argument("num_heads", num_heads);
  const double p = probability_argument("dropout", dropout);
  const ReleaseGil unlocked;
  MultiheadAttention module = MultiheadAttention::load(path.string(), n_heads, prefix);
  if (p == 0.0 && !batch_first) return {std::make_shared<MultiheadAttention>(std::move(module))};
  MultiheadAttentionOptions options = module.options();
  options.dropout = p;
  options.batch_first = batch_first;
  return {module_with(options, module.parameters())};
}

void save(const Module& self, const std::filesystem::path& path) {
  const std::shared_ptr<const MultiheadAttention> module = self.now;
  const ReleaseGil unlocked;
  module->save(path.string());
}

std::string text_of(const Module& self) {
  const MultiheadAttentionOptions& o = self.options();
  std::string text =
      "MultiheadAttention(" + std::to_string(o.embed_dim) + ", " + std::to_string(o.num_heads);
  const auto add = [&text](const char* name, const std::string& value) {
    text += std::string(", ") + name + "=" + value;
  };
  if (o.dropout != 0.0) add("dropout", nb::cast<std::string>(nb::repr(nb::float_(o.dropout))));
  if (!o.bias) add("bias", "False");
  if (o.add_bias_kv) add("add_bias_kv", "True");
  if (o.add_zero_attn) add("add_zero_attn", "True");
  if (o.kdim) add("kdim", std::to_string(*o.kdim));
  if (o.vdim) add("vdim", std::to_string(*o.vdim));
  if (o.batch_first) add("batch_first", "True");
  if (o.dtype != DType::f32) add("dtype", std::string("\"") + dtype_name(o.dtype) + "\"");
  return text + ")";
}

constexpr const char* kClassDoc =
    R"(Multi-head attention with the options, parameters and random tables of torch's
nn.MultiheadAttention.

embed_dim      width of query and output; a multiple of num_heads
dropout        probability of dropping a weight, in training only; a new module is in training
bias           biases on both projections
add_bias_kv    one learned key and value behind the projected ones
add_zero_attn  one key and value of zeros at the very end
kdim, vdim     widths of key and value, default embed_dim
batch_first    (B, T, width) instead of (T, B, width)
dtype          of parameters, inputs and outputs: float32, float64, bfloat16 or float16

After manual_seed(n), the parameters are those that torch draws after torch.manual_seed(n).)";

constexpr const char* kForwardDoc =
    R"(Attends from query to key and value; returns the output and the weights.

query             (T_q, B, embed_dim), with batch_first (B, T_q, embed_dim), or (T_q, embed_dim)
key, value        the same with T_k and kdim, vdim
key_padding_mask  (B, T_k), or (T_k) without a batch: bool, where True hides a key, or a float
attn_mask         (T_q, T_k), (B * num_heads, T_q, T_k) or (B, 1 or num_heads, T_q, T_k): bool,
                  where True hides a key, or a float that is added to the scores
need_weights      False: None instead of the weights
average_attn_weights  the weights are (B, T_q, S), else (B, num_heads, T_q, S); S is T_k and the
                  appended columns
is_causal         without attn_mask: query t sees the keys up to t; beside one, the mask counts

The output has query's layout; both results are of query's kind of array. Asking for weights
changes no bit of the output. A query that sees no key gives the output bias, and weights of 0.)";

constexpr const char* kForwardSignature =
    "def forward(self, query: Array, key: SupportsArray, value: SupportsArray, key_padding_mask: "
    "SupportsArray | None = None, need_weights: bool = True, attn_mask: SupportsArray | None = "
    "None, average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Array, Array | "
    "None]";

void def_properties(nb::class_<Module>& type) {
  type.def_prop_ro("embed_dim", [](const Module& m) { return m.options().embed_dim; })
      .def_prop_ro("num_heads", [](const Module& m) { return m.options().num_heads; })
      .def_prop_ro("num_kv_heads", [](const Module& m) { return m.now->num_kv_heads(); })
      .def_prop_ro("head_dim", [](const Module& m) { return m.now->head_dim(); })
      .def_prop_ro("kdim",
                   [](const Module& m) { return m.options().kdim.value_or(m.options().embed_dim); })
      .def_prop_ro("vdim",
                   [](const Module& m) { return m.options().vdim.value_or(m.options().embed_dim); })
      .def_prop_ro("dropout", [](const Module& m) { return m.options().dropout; })
      .def_prop_ro("batch_first", [](const Module& m) { return m.options().batch_first; })
      .def_prop_ro("dtype", [](const Module& m) { return dtype_name(m.options().dtype); })
      .def_prop_ro("training", [](const Module& m) { return m.now->training(); });
}

}  // namespace

void bind_multihead_attention(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Module> type(m, "MultiheadAttention", kClassDoc);
  type.def("__init__", &construct, "embed_dim"_a, "num_heads"_a, "dropout"_a = 0.0, "bias"_a = true,
           "add_bias_kv"_a = false, "add_zero_attn"_a = false, "kdim"_a = nb::none(),
           "vdim"_a = nb::none(), "batch_first"_a = false, "dtype"_a = "float32",
           nb::sig("def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, "
                   "bias: bool = True, add_bias_kv: bool = False, add_zero_attn: bool = False, "
                   "kdim: int | None = None, vdim: int | None = None, batch_first: bool = False, "
                   "dtype: object = \"float32\") -> None"));
  std::string call_signature = kForwardSignature;
  call_signature.replace(4, 7, "__call__");
  for (const auto& [name, signature] :
       {std::pair("forward", kForwardSignature), std::pair("__call__", call_signature.c_str())})
    type.def(name, &forward, "query"_a, "key"_a, "value"_a, "key_padding_mask"_a = nb::none(),
             "need_weights"_a = true, "attn_mask"_a = nb::none(), "average_attn_weights"_a = true,
             "is_causal"_a = false, nb::sig(signature), kForwardDoc);

  type.def(
          "train",
          [](Module& self, bool mode) -> Module& {
            self.now->train(mode);
            return self;
          },
          "mode"_a = true, nb::rv_policy::none, "Switches dropout on, or off; returns the module.")
      .def(
          "eval",
          [](Module& self) -> Module& {
            self.now->eval();
            return self;
          },
          nb::rv_policy::none, "Switches dropout off; returns the module.")
      .def("state_dict", &state_dict, nb::sig("def state_dict(self) -> dict[str, numpy.ndarray]"),
           "Copies of the parameters as NumPy arrays, under torch's names and in its order.")
      .def("load_state_dict", &load_state_dict, "state_dict"_a,
           nb::sig("def load_state_dict(self, state_dict: Mapping[str, SupportsArray]) -> None"),
           "Replaces all parameters by arrays or tensors: every name once, any floating dtype.\n"
           "Raises ValueError, and changes nothing, when a name or a shape is wrong.")
      .def("parameter_count", [](const Module& self) { return self.now->parameter_count(); })
      .def("save", &save, "path"_a, "Writes the parameters into a .safetensors file.")
      .def_static("load", &load, "path"_a, "num_heads"_a, "prefix"_a = "", "dropout"_a = 0.0,
                  "batch_first"_a = false,
                  nb::sig("def load(path: str | os.PathLike[str], num_heads: int, prefix: str = "
                          "\"\", dropout: float = 0.0, batch_first: bool = False) -> "
                          "MultiheadAttention"),
                  "The attention block of a .safetensors file whose names begin with prefix:\n"
                  "torch's names, qkv_proj, or BERT's. Raises OSError for a file that cannot be\n"
                  "read or believed.")
      .def("__repr__", &text_of);
  def_properties(type);
  def_gradients(m, type);
}

}  // namespace headwise::python
