// Loads an attention block from a file, runs it on random tokens, and prints where each head looks.
//
//   look_at_weights                            a new module, saved and loaded again
//   look_at_weights FILE NUM_HEADS [PREFIX]    a block of a .safetensors file; `headwise inspect
//   FILE` shows them
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "headwise/headwise.h"

namespace {

std::string save_new_module() {
  headwise::manual_seed(0);
  const headwise::MultiheadAttention attention({.embed_dim = 8, .num_heads = 2});
  attention.save("attention.safetensors");
  return "attention.safetensors";
}

void look(const std::string& path, std::size_t num_heads, const std::string& prefix) {
  auto attention = headwise::MultiheadAttention::load(path, num_heads, prefix);
  attention.eval();

  constexpr std::size_t kTokens = 5;
  const headwise::Tensor x = headwise::randn({kTokens, attention.options().embed_dim});
  headwise::ForwardOptions options;
  options.average_attn_weights = false;
  const headwise::ForwardResult result = attention.forward(x, x, x, options);

  // (num_heads, T_q, T_k): row t of a head says how query t spreads over the keys.
  const float* row = result.weights->data<float>();
  for (std::size_t h = 0; h < num_heads; ++h)
    for (std::size_t t = 0; t < kTokens; ++t, row += kTokens) {
      const auto strongest = std::max_element(row, row + kTokens) - row;
      std::printf("head %zu  token %zu looks most at %td (%.0f %%)\n", h, t, strongest,
                  100.0 * row[strongest]);
    }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3)
      look(save_new_module(), 2, "");
    else
      look(argv[1], std::strtoul(argv[2], nullptr, 10), argc > 3 ? argv[3] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
