#include <sstream>
#include <stdexcept>

#include "headwise/random.h"
#include "parity/run.h"

namespace headwise::parity {
namespace {

struct Draw {
  std::string kind;
  double a = 0.0, b = 0.0;  // low and high, or mean and std

  explicit Draw(const std::string& text) {
    std::istringstream in(text);
    std::string first, second;
    std::getline(in, kind, ',');
    std::getline(in, first, ',');
    std::getline(in, second, ',');
    a = std::stod(first);
    b = std::stod(second);
  }
};

Tensor drawn(const Draw& draw, Generator& generator, const ConstTensorView& like) {
  if (draw.kind == "randn") return randn(like.shape, generator, like.dtype);
  Tensor x(like.dtype, like.shape);
  if (draw.kind == "uniform")
    generator.uniform(x.view(), draw.a, draw.b);
  else
    generator.normal(x.view(), draw.a, draw.b);
  return x;
}

}  // namespace

Difference run_draws(const Case& c) {
  Generator generator(std::stoull(c.text("seed")));
  std::istringstream draws(c.text("draws"));
  Difference d;
  int number = 0;
  for (std::string text; std::getline(draws, text, ';'); ++number) {
    const Draw draw(text);
    const std::string name = "expected." + std::to_string(number);
    const Tensor x = drawn(draw, generator, c.tensor(name));
    d.add(compare_steps(text, x, c.tensor(name), draw.kind == "uniform" ? 0 : 2));
  }
  if (generator.next_u32() % (1u << 24) != c.size("next24"))
    throw std::runtime_error("the draws leave the generator out of step");
  return d;
}

}  // namespace headwise::parity
