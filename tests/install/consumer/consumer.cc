// Uses an installed library from outside the project.
#include <cstdio>

#include "headwise/headwise.h"

int main() {
  const headwise::Tensor x = headwise::Tensor::zeros(headwise::DType::f32, {2, 4, 8});
  std::printf("%s %s\n", HEADWISE_VERSION, headwise::to_string(x.shape()).c_str());
}
