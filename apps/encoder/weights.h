// The tensors of a BERT file by name, with the shapes that the configuration asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "encoder/config.h"
#include "encoder/layers.h"
#include "headwise/io.h"

namespace headwise::encoder {

struct LinearViews {
  ConstTensorView weight, bias;  // [N, K] and [N]
};

struct LayerViews {
  LinearViews query, key, value, attention_output, up, down;
  LayerNorm attention_norm, output_norm;
};

struct EncoderViews {
  ConstTensorView words, positions, types;
  LayerNorm embedding_norm;
  std::vector<LayerViews> layers;
  std::size_t parameter_count = 0;
};

// Names may begin with "bert.", as in files of models with a task on top; LayerNorm's tensors may
// have their old names gamma and beta. Throws FileError for a tensor that is missing, of another
// shape or of no floating dtype, and for a layer more than the configuration has. The views live as
// long as `file`.
EncoderViews find_weights(const TensorFile& file, const EncoderConfig& config);

// Throws what find_weights would, from the header alone.
void check_weights(const TensorFile& file, const EncoderConfig& config);

}  // namespace headwise::encoder
