#include "encoder/encoder.h"

#include "core/check.h"
#include "core/convert.h"
#include "encoder/weights.h"

namespace headwise::encoder {
namespace {

ConstTensorView row_of(const ConstTensorView& matrix, std::size_t i) {
  const auto offset = static_cast<std::ptrdiff_t>(i) * matrix.strides[0] *
                      static_cast<std::ptrdiff_t>(size_of(matrix.dtype));
  return {static_cast<const std::byte*>(matrix.data) + offset,
          matrix.dtype,
          {matrix.shape[1]},
          {matrix.strides[1]}};
}

template <typename T>
std::span<T> span_of(Tensor& tensor) {
  return {tensor.data<T>(), tensor.size()};
}

void round_into(const Tensor& values, std::span<float> out) {
  core::convert(values, {out.data(), values.shape()});
}

Tensor widened(const ConstTensorView& view) { return core::converted(view, DType::f64); }

kernels::PackedWeights pack(const LinearViews& views) {
  return {widened(views.weight), widened(views.bias)};
}

// BERT's three projections as the rows of one, in torch's order.
MultiheadAttention make_attention(const LayerViews& layer, const EncoderConfig& config) {
  const std::size_t d = config.d_model;
  std::vector<double> weight, bias;
  for (const LinearViews* part : {&layer.query, &layer.key, &layer.value}) {
    const std::vector<double> w = to_doubles(part->weight), b = to_doubles(part->bias);
    weight.insert(weight.end(), w.begin(), w.end());
    bias.insert(bias.end(), b.begin(), b.end());
  }
  const Tensor out_weight = widened(layer.attention_output.weight);
  const Tensor out_bias = widened(layer.attention_output.bias);
  const NamedView state[] = {{"in_proj_weight", {weight.data(), {3 * d, d}}},
                             {"in_proj_bias", {bias.data(), {3 * d}}},
                             {"out_proj.weight", out_weight.view()},
                             {"out_proj.bias", out_bias.view()}};
  MultiheadAttentionOptions options;
  options.embed_dim = d;
  options.num_heads = config.n_heads;
  options.dtype = DType::f64;
  MultiheadAttention attention(options);
  attention.load_state_dict(state);
  attention.eval();
  return attention;
}

// a [T, K] W^T + bias as [T, N]
Tensor linear(const Tensor& a, const kernels::PackedWeights& w) {
  const std::size_t T = a.shape()[0];
  Tensor c(DType::f64, {T, w.N()});
  kernels::MatmulArgs args;
  args.w = &w;
  args.a_dtype = args.c_dtype = DType::f64;
  args.a = a.data<double>();
  args.a_rows = {1, static_cast<std::ptrdiff_t>(w.K()), 0};
  args.c = c.data<double>();
  args.c_rows = {1, static_cast<std::ptrdiff_t>(w.N()), 0};
  args.M = T;
  kernels::matmul({&args, 1});
  return c;
}

void check_ids(std::span<const std::uint32_t> ids, const EncoderConfig& config) {
  if (ids.empty() || ids.size() > config.max_positions)
    core::throw_argument("ids", std::to_string(ids.size()) + " tokens",
                         "1 to " + std::to_string(config.max_positions));
  for (const auto id : ids)
    if (id >= config.vocab_size)
      core::throw_argument("ids", "token " + std::to_string(id),
                           "tokens below vocab_size " + std::to_string(config.vocab_size));
}

}  // namespace

Encoder Encoder::load(const std::string& weights, const EncoderConfig& config) {
  Encoder encoder(TensorFile::open(weights), config);
  EncoderViews views = find_weights(encoder.file_, config);
  encoder.words_ = views.words;
  encoder.positions_ = views.positions;
  encoder.type_ = to_doubles(row_of(views.types, 0));
  encoder.embedding_norm_ = std::move(views.embedding_norm);
  encoder.parameter_count_ = views.parameter_count;
  for (LayerViews& layer : views.layers)
    encoder.layers_.push_back({make_attention(layer, config), std::move(layer.attention_norm),
                               pack(layer.up), pack(layer.down), std::move(layer.output_norm)});
  return encoder;
}

EncoderOutput Encoder::run(std::span<const std::uint32_t> ids) const {
  check_ids(ids, config_);
  const std::size_t T = ids.size(), d = config_.d_model, H = config_.n_heads;
  EncoderOutput out{Tensor(DType::f32, {layers_.size() + 1, T, d}),
                    Tensor(DType::f32, {layers_.size(), H, T, T}), Tensor(DType::f32, {d})};
  Tensor x = embed(ids);
  for (std::size_t n = 0;; ++n) {
    round_into(x, span_of<float>(out.hidden).subspan(n * T * d, T * d));
    if (n == layers_.size()) break;
    x = run_layer(layers_[n], x, span_of<float>(out.weights).subspan(n * H * T * T, H * T * T));
  }
  for (std::size_t i = 0; i < d; ++i) {
    double sum = 0;
    for (std::size_t t = 0; t < T; ++t) sum += x.data<double>()[t * d + i];
    out.embedding.data<float>()[i] = static_cast<float>(sum / static_cast<double>(T));
  }
  return out;
}

Tensor Encoder::embed(std::span<const std::uint32_t> ids) const {
  const std::size_t d = config_.d_model;
  Tensor x(DType::f64, {ids.size(), d});
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const std::vector<double> word = to_doubles(row_of(words_, ids[t]));
    const std::vector<double> position = to_doubles(row_of(positions_, t));
    double* row = x.data<double>() + t * d;
    for (std::size_t i = 0; i < d; ++i) row[i] = word[i] + type_[i] + position[i];
  }
  embedding_norm_.apply(span_of<double>(x), {});
  return x;
}

Tensor Encoder::run_layer(const Layer& layer, const Tensor& x, std::span<float> weights) const {
  ForwardOptions options;
  options.need_weights = true;
  options.average_attn_weights = false;
  ForwardResult attended = layer.attention.forward(x, x, x, options);
  round_into(*attended.weights, weights);

  Tensor middle = std::move(attended.output);
  layer.attention_norm.apply(span_of<double>(middle), x.values<double>());
  Tensor wide = linear(middle, layer.up);
  gelu(span_of<double>(wide));
  Tensor y = linear(wide, layer.down);
  layer.output_norm.apply(span_of<double>(y), middle.values<double>());
  return y;
}

}  // namespace headwise::encoder
