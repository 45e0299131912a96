// Modules from files: every form of names ends in the same module.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "headwise/multihead_attention.h"
#include "support/tensors.h"

namespace headwise {
namespace {

class Load : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("headwise_load_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name = "m.safetensors") const { return folder_ / name; }

  static std::vector<float> values(const ConstTensorView& t) {
    std::vector<float> all;
    for (std::size_t i = 0; i < element_count(t.shape); ++i)
      all.push_back(static_cast<float>(test::get(t, i)));
    return all;
  }

  static void expect_equal(const MultiheadAttention& a, const MultiheadAttention& b) {
    const auto x = a.parameters(), y = b.parameters();
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(x[i].name, y[i].name);
      EXPECT_EQ(x[i].view.dtype, y[i].view.dtype);
      EXPECT_EQ(values(x[i].view), values(y[i].view)) << x[i].name;
    }
  }

  // A module whose biases are not zero.
  static MultiheadAttention module(const MultiheadAttentionOptions& options) {
    Generator generator(1);
    MultiheadAttention m(options, generator);
    unsigned seed = 2;
    for (const NamedView& p : m.parameters())
      if (p.name.ends_with("bias"))
        m.set_parameter(p.name, test::gaussian(p.view.dtype, p.view.shape, ++seed).view());
    return m;
  }

  std::string error(std::size_t num_heads, const std::string& prefix = "") const {
    try {
      MultiheadAttention::load(path(), num_heads, prefix);
    } catch (const std::exception& e) {
      std::string text = e.what();
      if (text.starts_with(path())) text = "FILE" + text.substr(path().size());
      return text;
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(Load, EveryFormIsWhatWasSaved) {
  using Names = MultiheadAttentionOptions::Names;
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const MultiheadAttentionOptions all[] = {
        {.embed_dim = 8, .num_heads = 2, .dtype = dtype},
        {.embed_dim = 8, .num_heads = 2, .bias = false, .dtype = dtype},
        {.embed_dim = 8, .num_heads = 2, .add_bias_kv = true, .dtype = dtype},
        {.embed_dim = 8, .num_heads = 2, .kdim = 3, .vdim = 5, .dtype = dtype},
        {.embed_dim = 8, .num_heads = 2, .bias = false, .vdim = 5, .dtype = dtype},
        {.embed_dim = 8, .num_heads = 4, .dtype = dtype, .num_kv_heads = 2},
        {.embed_dim = 8, .num_heads = 2, .dtype = dtype, .head_dim = 3},
        {.embed_dim = 8, .num_heads = 2, .dtype = dtype, .names = Names::fused},
    };
    for (const MultiheadAttentionOptions& options : all) {
      const MultiheadAttention saved = module(options);
      saved.save(path());
      const MultiheadAttention loaded = MultiheadAttention::load(path(), options.num_heads);
      expect_equal(saved, loaded);
      EXPECT_EQ(loaded.head_dim(), saved.head_dim());
      EXPECT_EQ(loaded.num_kv_heads(), saved.num_kv_heads());
    }
  }
}

TEST_F(Load, DrawsNothing) {
  module({.embed_dim = 8, .num_heads = 2}).save(path());
  manual_seed(5);
  const float expected = randn({1}).data<float>()[0];
  manual_seed(5);
  MultiheadAttention::load(path(), 2);
  EXPECT_EQ(randn({1}).data<float>()[0], expected);
}

// The rows of `packed`, cut into three.
std::vector<ConstTensorView> thirds(const ConstTensorView& packed) {
  std::vector<ConstTensorView> parts;
  const std::size_t rows = packed.shape[0] / 3;
  for (std::size_t i = 0; i < 3; ++i) {
    ConstTensorView part = packed;
    part.shape[0] = rows;
    part.data = static_cast<const float*>(packed.data) +
                i * rows * static_cast<std::size_t>(packed.strides[0]);
    parts.push_back(part);
  }
  return parts;
}

TEST_F(Load, BertBecomesTorchPacked) {
  const MultiheadAttention m = module({.embed_dim = 8, .num_heads = 2});
  const auto p = m.parameters();
  std::vector<NamedView> file;
  const std::string base = "encoder.layer.3.attention.";
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string self = base + "self." + (i == 0 ? "query" : i == 1 ? "key" : "value");
    file.push_back({self + ".weight", thirds(p[0].view)[i]});
    file.push_back({self + ".bias", thirds(p[1].view)[i]});
  }
  file.push_back({base + "output.dense.weight", p[2].view});
  file.push_back({base + "output.dense.bias", p[3].view});
  file.push_back({base + "output.LayerNorm.weight", p[3].view});
  save_safetensors(path(), file);
  expect_equal(MultiheadAttention::load(path(), 2, base), m);
  expect_equal(MultiheadAttention::load(path(), 2, "encoder.layer.3.attention"), m);
  expect_equal(MultiheadAttention::load(path(), 2), m);
}

TEST_F(Load, FusedTableWithBiasBecomesTorchPacked) {
  const MultiheadAttention m = module({.embed_dim = 8, .num_heads = 2});
  auto p = m.parameters();
  p[0].name = "qkv_proj.weight";
  p[1].name = "qkv_proj.bias";
  save_safetensors(path(), p);
  expect_equal(MultiheadAttention::load(path(), 2), m);
}

TEST_F(Load, OneOfSeveralBlocks) {
  const MultiheadAttention a = module({.embed_dim = 8, .num_heads = 2});
  const MultiheadAttention b = module({.embed_dim = 12, .num_heads = 3, .bias = false});
  std::vector<NamedView> file;
  for (NamedView p : a.parameters()) file.push_back({"first." + p.name, p.view});
  for (NamedView p : b.parameters()) file.push_back({"second." + p.name, p.view});
  save_safetensors(path(), file);
  expect_equal(MultiheadAttention::load(path(), 2, "first."), a);
  expect_equal(MultiheadAttention::load(path(), 3, "second"), b);
  EXPECT_EQ(error(2),
            "FILE: found 2 attention blocks: \"first.\", \"second.\", expected a block with prefix "
            "\"\"");
  EXPECT_EQ(error(2, "third"),
            "FILE: found 2 attention blocks: \"first.\", \"second.\", expected a block with prefix "
            "\"third\"");
}

TEST_F(Load, WrongHeadCount) {
  module({.embed_dim = 8, .num_heads = 2}).save(path());
  EXPECT_EQ(error(3),
            "num_heads: found 3, expected a divisor of 8, the width of the query projection");
  EXPECT_EQ(error(0),
            "num_heads: found 0, expected a divisor of 8, the width of the query projection");
  module({.embed_dim = 8, .num_heads = 4, .num_kv_heads = 2}).save(path());
  EXPECT_EQ(error(1),
            "num_heads: found 1 (heads of 8), expected heads that divide 4, the width of the key "
            "projection");
}

TEST_F(Load, WrongFiles) {
  EXPECT_THROW(MultiheadAttention::load(path("nothing"), 2), FileError);
  std::ofstream(path()) << "not a tensor file";
  EXPECT_THROW(MultiheadAttention::load(path(), 2), FileError);

  const Tensor weight = test::gaussian(DType::f32, {24, 8}, 1),
               square = test::gaussian(DType::f32, {8, 8}, 1);
  std::vector<NamedView> file = {{"in_proj_weight", weight.view()}};
  save_safetensors(path(), file);
  EXPECT_EQ(error(2), "FILE: found no attention block, expected a block with prefix \"\"");

  file.push_back({"out_proj.weight", square.view()});
  file.push_back({"out_proj.bias", square.view()});
  save_safetensors(path(), file);
  EXPECT_EQ(error(2),
            "FILE, tensor in_proj_bias: found nothing, expected it beside the block's others");
}

TEST_F(Load, SaveToAFolderThatIsNotThereThrows) {
  EXPECT_THROW(module({.embed_dim = 8, .num_heads = 2}).save(path("no/such/folder")), FileError);
}

}  // namespace
}  // namespace headwise
