// A folder with a BERT model as Hugging Face saves it. Of its files only config.json, vocab.txt,
// tokenizer_config.json (if it is there) and model.safetensors are opened.
#pragma once

#include <string>

#include "encoder/config.h"
#include "encoder/tokenizer.h"

namespace headwise::encoder {

struct ModelFolder {
  std::string path;
  EncoderConfig config;
  Tokenizer tokenizer;

  std::string weights() const;

  // Reads all but the weights, whose names and shapes it checks. Throws FileError naming the file,
  // what was found and expected.
  static ModelFolder open(const std::string& path);
};

}  // namespace headwise::encoder
