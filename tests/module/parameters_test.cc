// Names, order, shapes and first values of the parameters: those of torch 2.13
// (fixtures/module_init.txt, written by fixtures/make_module_init.py).
#include "module/parameters.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "support/tensors.h"

namespace headwise::module {
namespace {

using Names = MultiheadAttentionOptions::Names;

std::string names_of(const MultiheadAttentionOptions& options) {
  Generator generator(0);
  std::string names;
  for (const NamedView& p : MultiheadAttention(options, generator).parameters())
    names += (names.empty() ? "" : " ") + p.name + to_string(p.view.shape);
  return names;
}

TEST(Parameters, NamesOrderAndShapes) {
  EXPECT_EQ(names_of({.embed_dim = 4, .num_heads = 2}),
            "in_proj_weight(12, 4) in_proj_bias(12,) out_proj.weight(4, 4) out_proj.bias(4,)");
  EXPECT_EQ(names_of({.embed_dim = 4, .num_heads = 2, .bias = false}),
            "in_proj_weight(12, 4) out_proj.weight(4, 4)");
  EXPECT_EQ(names_of({.embed_dim = 4, .num_heads = 2, .add_bias_kv = true}),
            "in_proj_weight(12, 4) in_proj_bias(12,) bias_k(1, 1, 4) bias_v(1, 1, 4) "
            "out_proj.weight(4, 4) out_proj.bias(4,)");
  EXPECT_EQ(names_of({.embed_dim = 4, .num_heads = 2, .bias = false, .add_bias_kv = true}),
            "in_proj_weight(12, 4) bias_k(1, 1, 4) bias_v(1, 1, 4) out_proj.weight(4, 4)");
  EXPECT_EQ(names_of({.embed_dim = 4, .num_heads = 2, .bias = false, .vdim = 5}),
            "q_proj_weight(4, 4) k_proj_weight(4, 4) v_proj_weight(4, 5) out_proj.weight(4, 4)");
  EXPECT_EQ(names_of({.embed_dim = 4, .num_heads = 2, .add_zero_attn = true}),
            names_of({.embed_dim = 4, .num_heads = 2}));
  EXPECT_EQ(names_of({.embed_dim = 4, .num_heads = 2, .kdim = 4, .vdim = 4}),
            names_of({.embed_dim = 4, .num_heads = 2}))
      << "explicit equal widths count as the same";
}

TEST(Parameters, FewerKeyHeadsAndFreeHeadDim) {
  EXPECT_EQ(names_of({.embed_dim = 6, .num_heads = 4, .num_kv_heads = 2, .head_dim = 5}),
            "in_proj_weight(40, 6) in_proj_bias(40,) out_proj.weight(6, 20) out_proj.bias(6,)");
  EXPECT_EQ(
      names_of({.embed_dim = 6, .num_heads = 3, .add_bias_kv = true, .kdim = 2, .num_kv_heads = 1}),
      "q_proj_weight(6, 6) k_proj_weight(2, 2) v_proj_weight(2, 6) in_proj_bias(10,) "
      "bias_k(1, 1, 2) bias_v(1, 1, 2) out_proj.weight(6, 6) out_proj.bias(6,)");
}

TEST(Parameters, FusedNamesHaveNoBias) {
  MultiheadAttentionOptions options{.embed_dim = 4, .num_heads = 2, .names = Names::fused};
  EXPECT_EQ(names_of(options), "qkv_proj.weight(12, 4) out_proj.weight(4, 4)");
  EXPECT_FALSE(MultiheadAttention(options).options().bias);
}

// One number of another sign apart, or at most `steps` numbers of the dtype.
bool near_bits(std::uint64_t a, std::uint64_t b, std::uint64_t steps) {
  return a > b ? a - b <= steps : b - a <= steps;
}

std::uint64_t bits_at(const ConstTensorView& t, std::size_t i) {
  std::uint64_t bits = 0;  // little-endian
  const std::size_t width = size_of(t.dtype);
  std::memcpy(&bits, static_cast<const char*>(t.data) + i * width, width);
  return bits;
}

std::uint64_t fnv1a(const ConstTensorView& t) {
  std::uint64_t h = 0xcbf29ce484222325u;
  const auto* data = static_cast<const unsigned char*>(t.data);
  for (std::size_t i = 0; i < element_count(t.shape) * size_of(t.dtype); ++i)
    h = (h ^ data[i]) * 0x100000001b3u;
  return h;
}

MultiheadAttentionOptions read_options(std::istringstream& line, std::uint64_t& seed) {
  MultiheadAttentionOptions o;
  std::string dtype;
  std::size_t kdim = 0, vdim = 0;
  bool fused = false;
  line >> seed >> dtype >> o.embed_dim >> o.num_heads >> o.bias >> o.add_bias_kv >> kdim >> vdim >>
      fused;
  for (DType d : {DType::f32, DType::f64, DType::bf16, DType::f16})
    if (name_of(d) == dtype) o.dtype = d;
  o.kdim = kdim;
  o.vdim = vdim;
  if (fused) o.names = Names::fused;
  return o;
}

TEST(Parameters, FirstValuesAreThoseOfTorch) {
  std::ifstream file(HEADWISE_FIXTURES "/module_init.txt");
  ASSERT_TRUE(file) << "fixtures/module_init.txt";
  Generator generator(0);
  std::vector<NamedView> parameters;
  std::optional<MultiheadAttention> module;
  std::size_t next = 0, n_modules = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string name, shape, word;
    line >> name;
    SCOPED_TRACE("module " + std::to_string(n_modules) + ", " + name);
    if (name == "module") {
      std::uint64_t seed = 0;
      const MultiheadAttentionOptions options = read_options(line, seed);
      generator.manual_seed(seed);
      module.emplace(options, generator);
      parameters = module->parameters();
      next = 0;
      ++n_modules;
      continue;
    }
    if (name == "next") {
      EXPECT_EQ(next, parameters.size());
      Tensor draw(DType::f64, {1});
      generator.uniform(draw.view(), 0, 1);
      line >> word;
      EXPECT_EQ(bits_at(draw.view(), 0), std::strtoull(word.c_str(), nullptr, 16));
      continue;
    }
    ASSERT_LT(next, parameters.size());
    const NamedView& p = parameters[next++];
    ASSERT_EQ(p.name, name);
    line >> shape >> word;
    const bool normal = name == "bias_k" || name == "bias_v";
    EXPECT_TRUE(normal || fnv1a(p.view) == std::strtoull(word.c_str(), nullptr, 16));
    std::vector<std::uint64_t> last;
    while (line >> word) last.push_back(std::strtoull(word.c_str(), nullptr, 16));
    const std::size_t n = element_count(p.view.shape);
    for (std::size_t i = 0; i < last.size(); ++i)
      EXPECT_TRUE(near_bits(bits_at(p.view, n - last.size() + i), last[i], normal ? 2 : 0)) << i;
  }
  EXPECT_EQ(n_modules, 32u);
}

class StateDict : public ::testing::Test {
 protected:
  MultiheadAttention module_{{.embed_dim = 4, .num_heads = 2}};
  Tensor in_weight_ = test::gaussian(DType::f64, {12, 4}, 1);
  Tensor in_bias_ = test::gaussian(DType::f16, {12}, 2);
  Tensor out_weight_ = test::gaussian(DType::f32, {4, 4}, 3);
  Tensor out_bias_ = test::gaussian(DType::bf16, {4}, 4);

  std::vector<NamedView> state() {
    return {{"out_proj.weight", out_weight_.view()},
            {"in_proj_weight", in_weight_.view()},
            {"out_proj.bias", out_bias_.view()},
            {"in_proj_bias", in_bias_.view()}};
  }
  std::string error(const std::vector<NamedView>& state) {
    const std::string before = bytes();
    try {
      module_.load_state_dict(state);
    } catch (const ArgumentError& e) {
      EXPECT_EQ(bytes(), before) << "all or nothing";
      return e.what();
    }
    return "";
  }
  std::string bytes() {
    std::string all;
    for (const NamedView& p : module_.parameters())
      all.append(static_cast<const char*>(p.view.data),
                 element_count(p.view.shape) * size_of(p.view.dtype));
    return all;
  }
};

TEST_F(StateDict, AnyOrderAndFloatingDType) {
  module_.load_state_dict(state());
  for (const NamedView& p : module_.parameters())
    for (const NamedView& given : state()) {
      const std::size_t n = given.name == p.name ? element_count(p.view.shape) : 0;
      for (std::size_t i = 0; i < n; ++i)
        EXPECT_EQ(test::get(p.view, i), static_cast<float>(test::get(given.view, i)));
    }
}

TEST_F(StateDict, MissingUnexpectedAndDoubledNamesAreNamed) {
  auto s = state();
  s.erase(s.begin());
  s.push_back({"extra", out_bias_.view()});
  s.push_back({"in_proj_bias", in_bias_.view()});
  EXPECT_EQ(error(s),
            "state: found missing out_proj.weight, unexpected extra, twice in_proj_bias, expected "
            "each of in_proj_weight, in_proj_bias, out_proj.weight, out_proj.bias once");
}

TEST_F(StateDict, WrongShape) {
  auto s = state();
  s[2].view = in_bias_.view();
  EXPECT_EQ(error(s), "out_proj.bias: found shape (12,), expected (4,)");
}

TEST_F(StateDict, WrongDType) {
  const Tensor integers = Tensor::zeros(DType::i32, {4});
  auto s = state();
  s[2].view = integers.view();
  EXPECT_EQ(error(s), "out_proj.bias: found dtype i32, expected f32, f64, bf16 or f16");
}

TEST_F(StateDict, NullData) {
  auto s = state();
  s[2].view.data = nullptr;
  EXPECT_EQ(error(s),
            "out_proj.bias: found null data for shape (4,), expected a pointer to its elements");
}

TEST_F(StateDict, SetOneParameter) {
  const Tensor x = test::gaussian(DType::f32, {2, 1, 4}, 5);
  const Tensor before = std::move(module_.forward(x, x, x).output);
  module_.set_parameter("out_proj.bias", test::gaussian(DType::f32, {4}, 6).view());
  const Tensor after = std::move(module_.forward(x, x, x).output);
  const Tensor added = test::gaussian(DType::f32, {4}, 6);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(test::get(after.view(), i),
                test::get(before.view(), i) + test::get(added.view(), i % 4), 1e-6);
  EXPECT_THROW(module_.set_parameter("nothing", x), ArgumentError);
  EXPECT_THROW(module_.set_parameter("out_proj.bias", x), ArgumentError);
}

TEST_F(StateDict, TransposedViewsAreTaken) {
  const Tensor transposed = test::gaussian(DType::f32, {4, 4}, 7);
  ConstTensorView view = transposed.view();
  view.strides = {1, 4};
  module_.set_parameter("out_proj.weight", view);
  EXPECT_EQ(test::get(module_.parameters()[2].view, 1), test::get(transposed.view(), 4));
}

}  // namespace
}  // namespace headwise::module
