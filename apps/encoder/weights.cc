#include "encoder/weights.h"

#include <algorithm>
#include <initializer_list>

#include "io/refusal.h"

namespace headwise::encoder {
namespace {

std::string describe(const std::vector<std::uint64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

class Finder {
 public:
  // With `look_only`, checks names, shapes and dtypes and returns empty views: a file's elements
  // may have to be copied before they can be viewed.
  Finder(const TensorFile& file, const EncoderConfig& config, bool look_only)
      : file_(file), config_(config), look_only_(look_only) {
    if (file_.find("embeddings.word_embeddings.weight") == nullptr &&
        file_.find("bert.embeddings.word_embeddings.weight") != nullptr)
      prefix_ = "bert.";
  }

  ConstTensorView tensor(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const std::string full = prefix_ + name;
    const TensorInfo* info = file_.find(full);
    if (info == nullptr) refuse(full, "no such tensor", "one of shape " + describe(shape));
    if (info->shape != shape) refuse(full, "shape " + describe(info->shape), describe(shape));
    if (!info->type || !is_floating(*info->type))
      refuse(full, "dtype " + info->dtype, "F32, F64, BF16 or F16");
    if (look_only_) return {nullptr, *info->type, {0}};
    const ConstTensorView view = file_.view(full);
    n_elements_ += element_count(view.shape);
    return view;
  }

  LinearViews linear(const std::string& name, std::size_t N, std::size_t K) {
    return {tensor(name + ".weight", {N, K}), tensor(name + ".bias", {N})};
  }

  LayerNorm norm(const std::string& name) {
    const bool old = file_.find(prefix_ + name + ".weight") == nullptr &&
                     file_.find(prefix_ + name + ".gamma") != nullptr;
    return {to_doubles(tensor(name + (old ? ".gamma" : ".weight"), {config_.d_model})),
            to_doubles(tensor(name + (old ? ".beta" : ".bias"), {config_.d_model})),
            config_.layer_norm_eps};
  }

  LayerViews layer(std::size_t n) {
    const std::string name = layer_name(n), attention = name + "attention.";
    const std::size_t d = config_.d_model;
    LayerViews out;
    out.query = linear(attention + "self.query", d, d);
    out.key = linear(attention + "self.key", d, d);
    out.value = linear(attention + "self.value", d, d);
    out.attention_output = linear(attention + "output.dense", d, d);
    out.attention_norm = norm(attention + "output.LayerNorm");
    out.up = linear(name + "intermediate.dense", config_.d_feed, d);
    out.down = linear(name + "output.dense", d, config_.d_feed);
    out.output_norm = norm(name + "output.LayerNorm");
    return out;
  }

  void expect_no_layer(std::size_t n) const {
    const std::string next = prefix_ + layer_name(n);
    for (const TensorInfo& info : file_.tensors())
      if (info.name.starts_with(next))
        refuse(info.name, "a tensor of one more layer",
               "num_hidden_layers " + std::to_string(n) + " of config.json");
  }

  std::size_t n_elements() const { return n_elements_; }

 private:
  static std::string layer_name(std::size_t n) {
    return "encoder.layer." + std::to_string(n) + ".";
  }
  [[noreturn]] void refuse(const std::string& tensor, const std::string& found,
                           const std::string& expected) const {
    throw io::file_error(file_.path(), io::Refusal(found, expected, tensor));
  }

  const TensorFile& file_;
  const EncoderConfig& config_;
  const bool look_only_;
  std::string prefix_;
  std::size_t n_elements_ = 0;
};

EncoderViews find(const TensorFile& file, const EncoderConfig& config, bool look_only) {
  Finder finder(file, config, look_only);
  EncoderViews out;
  out.words =
      finder.tensor("embeddings.word_embeddings.weight", {config.vocab_size, config.d_model});
  out.positions = finder.tensor("embeddings.position_embeddings.weight",
                                {config.max_positions, config.d_model});
  out.types =
      finder.tensor("embeddings.token_type_embeddings.weight", {config.n_types, config.d_model});
  out.embedding_norm = finder.norm("embeddings.LayerNorm");
  for (std::size_t n = 0; n < config.n_layers; ++n) out.layers.push_back(finder.layer(n));
  finder.expect_no_layer(config.n_layers);
  out.parameter_count = finder.n_elements();
  return out;
}

}  // namespace

EncoderViews find_weights(const TensorFile& file, const EncoderConfig& config) {
  return find(file, config, false);
}

void check_weights(const TensorFile& file, const EncoderConfig& config) {
  find(file, config, true);
}

}  // namespace headwise::encoder
