// Uses an installed library from outside the project.
#include <cstdio>

#include "headwise/headwise.h"

int main() {
  headwise::manual_seed(0);
  const headwise::MultiheadAttention attention(
      {.embed_dim = 8, .num_heads = 2, .batch_first = true});
  const headwise::Tensor x = headwise::randn({2, 4, 8});
  const headwise::ForwardResult result = attention.forward(x, x, x);
  std::printf("%s %s %s\n", HEADWISE_VERSION, headwise::to_string(result.output.shape()).c_str(),
              headwise::to_string(result.weights->shape()).c_str());
}
