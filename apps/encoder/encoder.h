// BERT's encoder (Devlin et al. 2018) on headwise's attention:
//   x = LayerNorm(word + type + position), then for each layer
//   x = LayerNorm(x + attention(x)), x = LayerNorm(x + W2 gelu(W1 x)).
// Computed in f64, whatever the file holds: after six layers in f32 the weights that a person looks
// at would be off by some 1e-6, in PyTorch as here, and a sentence takes no time either way.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "encoder/config.h"
#include "encoder/layers.h"
#include "headwise/io.h"
#include "headwise/multihead_attention.h"
#include "headwise/tensor.h"
#include "kernels/matmul.h"

namespace headwise::encoder {

struct EncoderOutput {
  // f32, rounded from f64.
  Tensor hidden;     // [n_layers + 1, T, d_model]: after the embeddings and after each layer
  Tensor weights;    // [n_layers, n_heads, T, T]: what attends to what
  Tensor embedding;  // [d_model]: the mean of the last hidden states, the sentence as one vector
};

class Encoder {
 public:
  // Reads `weights`, a .safetensors file, and checks every tensor's shape against `config` before
  // anything is computed. Throws FileError naming the tensor, what was found and expected.
  static Encoder load(const std::string& weights, const EncoderConfig& config);

  const EncoderConfig& config() const { return config_; }
  std::size_t parameter_count() const { return parameter_count_; }

  // ids: 1 to max_positions tokens, each below vocab_size; throws ArgumentError. The same bits for
  // any number of threads.
  EncoderOutput run(std::span<const std::uint32_t> ids) const;

 private:
  struct Layer {
    MultiheadAttention attention;
    LayerNorm attention_norm;
    kernels::PackedWeights up, down;  // [d_feed, d_model] and [d_model, d_feed]
    LayerNorm output_norm;
  };

  Encoder(TensorFile file, const EncoderConfig& config) : config_(config), file_(std::move(file)) {}
  Tensor embed(std::span<const std::uint32_t> ids) const;  // [T, d_model], f64
  // One layer on x [T, d_model]; its attention weights go to `weights` [n_heads, T, T].
  Tensor run_layer(const Layer& layer, const Tensor& x, std::span<float> weights) const;

  EncoderConfig config_;
  TensorFile file_;  // mapped: only the rows of the tokens at hand are read
  ConstTensorView words_, positions_;
  std::vector<double> type_;  // of the first kind of sentence: there is one sentence
  LayerNorm embedding_norm_;
  std::vector<Layer> layers_;
  std::size_t parameter_count_ = 0;
};

}  // namespace headwise::encoder
