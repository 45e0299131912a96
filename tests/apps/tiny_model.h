// A small random BERT model in a folder, whole or with one thing wrong.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "headwise/io.h"
#include "headwise/random.h"
#include "io/support.h"

namespace headwise::test {

struct TinyModel {
  std::string config = R"({"model_type": "bert", "vocab_size": 12, "hidden_size": 8,
      "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
      "max_position_embeddings": 40, "layer_norm_eps": 1e-12, "hidden_act": "gelu"})";
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\nsat\non\nmat\n.\n##s\n";
  std::map<std::string, Tensor> tensors;

  TinyModel() {
    Generator generator(7);
    const auto add = [&](const std::string& name, Shape shape) {
      tensors.emplace(name, randn(shape, generator));
    };
    const auto linear = [&](const std::string& name, std::size_t N, std::size_t K) {
      add(name + ".weight", {N, K});
      add(name + ".bias", {N});
    };
    add("embeddings.word_embeddings.weight", {12, 8});
    add("embeddings.position_embeddings.weight", {40, 8});
    add("embeddings.token_type_embeddings.weight", {2, 8});
    add("embeddings.LayerNorm.weight", {8});
    add("embeddings.LayerNorm.bias", {8});
    for (const std::string n : {"0", "1"}) {
      const std::string layer = "encoder.layer." + n + ".";
      for (const char* name : {"query", "key", "value"})
        linear(layer + "attention.self." + name, 8, 8);
      linear(layer + "attention.output.dense", 8, 8);
      linear(layer + "intermediate.dense", 16, 8);
      linear(layer + "output.dense", 8, 16);
      for (const char* name : {"attention.output", "output"}) {
        add(layer + name + ".LayerNorm.weight", {8});
        add(layer + name + ".LayerNorm.bias", {8});
      }
    }
  }

  // Gives every name a prefix, or changes it in another way.
  void rename(const std::function<std::string(const std::string&)>& change) {
    std::map<std::string, Tensor> renamed;
    for (auto& [name, tensor] : tensors) renamed.emplace(change(name), std::move(tensor));
    tensors = std::move(renamed);
  }

  void write_weights(const std::string& path) const {
    std::vector<NamedView> views;
    for (const auto& [name, tensor] : tensors) views.push_back({name, tensor.view()});
    save_safetensors(path, views);
  }

  void write(const TempFolder& folder) const {
    write_bytes(folder / "config.json", config);
    write_bytes(folder / "vocab.txt", vocabulary);
    write_weights(folder / "model.safetensors");
  }
};

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace headwise::test
