// Draws against those of torch 2.13: fixtures/random.txt, written by fixtures/make_random.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/random.h"

namespace headwise {
namespace {

DType dtype_named(const std::string& name) {
  for (DType d : {DType::f32, DType::f64, DType::bf16, DType::f16})
    if (name_of(d) == name) return d;
  ADD_FAILURE() << "dtype " << name;
  return DType::f32;
}

// Element i as a number that counts the representable values from 0.
std::int64_t rank_of(const Tensor& t, std::size_t i) {
  const std::size_t width = size_of(t.dtype());
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(t.view().data) + i * width, width);
  const std::uint64_t sign = std::uint64_t{1} << (8 * width - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return (bits & sign) != 0 ? -magnitude : magnitude;
}

std::int64_t rank_of(std::uint64_t bits, DType dtype) {
  Tensor t(dtype, {1});
  std::memcpy(t.view().data, &bits, size_of(dtype));
  return rank_of(t, 0);
}

// One line of the fixture: draws, and compares the elements that the line lists.
void check_draw(Generator& generator, const std::string& kind, std::istream& line) {
  std::string dtype_name, a_text, b_text;
  std::size_t n = 0;
  line >> dtype_name >> n >> a_text >> b_text;
  const double a = std::stod(a_text), b = std::stod(b_text);
  Tensor x(dtype_named(dtype_name), {n});
  if (kind == "uniform")
    generator.uniform(x.view(), a, b);
  else
    generator.normal(x.view(), a, b);
  std::vector<std::uint64_t> expected;
  for (std::uint64_t bits; line >> std::hex >> bits;) expected.push_back(bits);
  ASSERT_EQ(expected.size(), std::min<std::size_t>(n, 20));
  const std::int64_t allowed = kind == "uniform" ? 0 : 2;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t found = rank_of(x, n - expected.size() + i);
    EXPECT_LE(std::abs(found - rank_of(expected[i], x.dtype())), allowed) << "from the end, " << i;
  }
}

TEST(TorchRandom, MixedDrawsAreTorchs) {
  std::ifstream file(HEADWISE_FIXTURES "/random.txt");
  ASSERT_TRUE(file) << "fixtures/random.txt";
  Generator generator(0);
  int draws = 0;
  for (std::string text; std::getline(file, text);) {
    SCOPED_TRACE(text.substr(0, 60));
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    if (kind == "seed") {
      std::uint64_t seed = 0;
      line >> seed;
      generator.manual_seed(seed);
    } else {
      check_draw(generator, kind, line);
      ++draws;
    }
  }
  EXPECT_GT(draws, 250);
}

TEST(TorchRandom, RawDrawsAreTheMersenneTwisters) {
  Generator generator(5489);
  for (int i = 0; i < 9999; ++i) generator.next_u32();
  EXPECT_EQ(generator.next_u32(), 4123659995u);  // the value the C++ standard names for mt19937
  Generator halves(7), whole(7);
  const std::uint64_t high = halves.next_u32(), low = halves.next_u32();
  EXPECT_EQ(whole.next_u64(), (high << 32) | low);
}

TEST(TorchRandom, SeedingForgetsTheKeptNormal) {
  Generator a(3), b(3);
  a.next_normal();  // keeps the second of its pair
  a.manual_seed(3);
  EXPECT_EQ(a.next_normal(), b.next_normal());
  EXPECT_EQ(a.next_normal(), b.next_normal());
}

TEST(TorchRandom, DefaultGeneratorIsSeededByManualSeed) {
  manual_seed(11);
  const Tensor a = randn({3, 7});
  Generator generator(11);
  const Tensor b = randn({3, 7}, generator);
  EXPECT_TRUE(std::ranges::equal(a.values<float>(), b.values<float>()));
  EXPECT_EQ(a.shape(), (Shape{3, 7}));
}

TEST(TorchRandom, UniformStaysBelowTheOpenEnd) {
  Generator generator(1);
  Tensor x(DType::bf16, {20000});
  generator.uniform(x.view(), 0.0, 1.0);  // bf16 rounds the largest draws up to 1
  for (bfloat16 v : x.values<bfloat16>()) {
    EXPECT_GE(static_cast<float>(v), 0.0f);
    EXPECT_LT(static_cast<float>(v), 1.0f);
  }
  generator.uniform(x.view(), 2.0, 2.0);
  EXPECT_EQ(static_cast<float>(x.values<bfloat16>()[19999]), 2.0f);
}

TEST(TorchRandom, WrongArgumentsDrawNothing) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Generator used(5), fresh(5);
  std::vector<float> memory(8);
  const TensorView x(memory.data(), {8});
  EXPECT_THROW(used.uniform(x, 1.0, 0.0), ArgumentError);
  EXPECT_THROW(used.uniform(x, kNaN, 1.0), ArgumentError);
  EXPECT_THROW(used.uniform(x, 0.0, kInf), ArgumentError);
  EXPECT_THROW(used.uniform(x, -3e38, 3e38), ArgumentError);
  EXPECT_THROW(used.normal(x, 0.0, -1.0), ArgumentError);
  EXPECT_THROW(used.normal(x, 0.0, kNaN), ArgumentError);
  EXPECT_THROW(used.normal({memory.data(), DType::f32, {4}, {2}}, 0.0, 1.0), ArgumentError);
  EXPECT_THROW(used.uniform({nullptr, DType::f32, {4}}, 0.0, 1.0), ArgumentError);
  EXPECT_THROW(used.uniform({memory.data(), DType::i32, {4}}, 0.0, 1.0), DTypeError);
  EXPECT_EQ(used.next_u32(), fresh.next_u32());
}

}  // namespace
}  // namespace headwise
