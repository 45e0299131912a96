// Attention blocks of every form, whole and with one shape wrong.
#include "headwise/io.h"
#include "io/support.h"

namespace headwise {
namespace {

using Form = AttentionBlock::Form;
struct Parameter {
  std::string name;
  Shape shape;
};

class Blocks : public ::testing::Test {
 protected:
  std::vector<AttentionBlock> find_in(const std::vector<Parameter>& parameters,
                                      DType dtype = DType::f32) {
    std::vector<Tensor> owners;
    std::vector<NamedView> views;
    owners.reserve(parameters.size());
    for (const Parameter& p : parameters) {
      owners.push_back(Tensor::zeros(dtype, p.shape));
      views.push_back({p.name, owners.back()});
    }
    save_safetensors(folder_ / "a.safetensors", views);
    return find_attention_blocks(TensorFile::open(folder_ / "a.safetensors"));
  }

  test::TempFolder folder_;
};

std::vector<Parameter> bert_layer(const std::string& prefix, std::size_t d) {
  std::vector<Parameter> all;
  for (const char* part : {"self.query", "self.key", "self.value", "output.dense"}) {
    all.push_back({prefix + part + ".weight", {d, d}});
    all.push_back({prefix + part + ".bias", {d}});
  }
  return all;
}

TEST_F(Blocks, TorchPacked) {
  const auto blocks = find_in({{"in_proj_weight", {24, 8}},
                               {"in_proj_bias", {24}},
                               {"out_proj.weight", {8, 8}},
                               {"out_proj.bias", {8}}});
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].problem, "");
  EXPECT_EQ(blocks[0].prefix, "");
  EXPECT_EQ(blocks[0].form, Form::torch_packed);
  EXPECT_EQ(blocks[0].embed_dim, 8u);
  EXPECT_EQ(blocks[0].query_width, 8u);
  EXPECT_EQ(blocks[0].kv_width, 8u);
  EXPECT_TRUE(blocks[0].bias);
  EXPECT_FALSE(blocks[0].bias_kv);
  EXPECT_EQ(blocks[0].parameter_count, 4u * 8 * 8 + 4 * 8);
  EXPECT_EQ(blocks[0].tensors, (std::vector<std::string>{"in_proj_weight", "in_proj_bias",
                                                         "out_proj.weight", "out_proj.bias"}));
}

TEST_F(Blocks, TorchSeparateWithAppendedKeyAndValue) {
  const auto blocks = find_in({{"a.q_proj_weight", {8, 8}},
                               {"a.k_proj_weight", {8, 5}},
                               {"a.v_proj_weight", {8, 7}},
                               {"a.bias_k", {1, 1, 8}},
                               {"a.bias_v", {1, 1, 8}},
                               {"a.out_proj.weight", {8, 8}}},
                              DType::bf16);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].problem, "");
  EXPECT_EQ(blocks[0].prefix, "a.");
  EXPECT_EQ(blocks[0].form, Form::torch_separate);
  EXPECT_EQ(blocks[0].kdim, 5u);
  EXPECT_EQ(blocks[0].vdim, 7u);
  EXPECT_FALSE(blocks[0].bias);
  EXPECT_TRUE(blocks[0].bias_kv);
  EXPECT_EQ(blocks[0].parameter_count, 2u * 64 + 40 + 56 + 16);
}

TEST_F(Blocks, FusedWithFewerKeyHeads) {
  const auto blocks = find_in({{"qkv_proj.weight", {12 + 2 * 4, 8}}, {"out_proj.weight", {8, 12}}});
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].problem, "");
  EXPECT_EQ(blocks[0].form, Form::fused);
  EXPECT_EQ(blocks[0].query_width, 12u);
  EXPECT_EQ(blocks[0].kv_width, 4u);
}

TEST_F(Blocks, BertLayersInTheOrderOfTheirNumbers) {
  std::vector<Parameter> all;
  for (const char* layer : {"10", "9", "100", "2"})
    for (const Parameter& p : bert_layer("encoder.layer." + std::string(layer) + ".attention.", 6))
      all.push_back(p);
  const auto blocks = find_in(all);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].prefix, "encoder.layer.2.attention.");
  EXPECT_EQ(blocks[1].prefix, "encoder.layer.9.attention.");
  EXPECT_EQ(blocks[2].prefix, "encoder.layer.10.attention.");
  EXPECT_EQ(blocks[3].prefix, "encoder.layer.100.attention.");
  for (const AttentionBlock& block : blocks) {
    EXPECT_EQ(block.form, Form::bert);
    EXPECT_EQ(block.problem, "");
    EXPECT_EQ(block.parameter_count, 4u * 36 + 24);
  }
}

TEST_F(Blocks, OtherNamesAreNoBlocks) {
  EXPECT_TRUE(find_in({{"in_proj_weight", {24, 8}}}).empty());
  EXPECT_TRUE(find_in({{"my_in_proj_weight", {24, 8}}, {"my_out_proj.weight", {8, 8}}}).empty());
  EXPECT_TRUE(find_in({{"qkv_proj.weight", {24, 8}}, {"o_proj.weight", {8, 8}}}).empty());
}

TEST_F(Blocks, AProblemNamesTensorFoundAndExpected) {
  const auto problem = [&](const std::vector<Parameter>& parameters, DType dtype = DType::f32) {
    const auto blocks = find_in(parameters, dtype);
    return blocks.size() == 1 ? blocks[0].problem : "no block";
  };
  EXPECT_EQ(problem({{"in_proj_weight", {25, 8}}, {"out_proj.weight", {8, 8}}}),
            "tensor in_proj_weight: found shape (25, 8), expected shape (24, 8)");
  EXPECT_EQ(problem({{"in_proj_weight", {24, 8}}, {"out_proj.weight", {8, 9}}}),
            "tensor out_proj.weight: found shape (8, 9), expected shape (8, 8)");
  EXPECT_EQ(problem({{"in_proj_weight", {24, 8}}, {"out_proj.weight", {7, 8}}}),
            "tensor out_proj.weight: found shape (7, 8), expected shape (8, 8)");
  EXPECT_EQ(problem({{"in_proj_weight", {24}}, {"out_proj.weight", {8, 8}}}),
            "tensor in_proj_weight: found shape (24,), expected 2 dims");
  EXPECT_EQ(problem({{"in_proj_weight", {0, 0}}, {"out_proj.weight", {0, 0}}}),
            "tensor in_proj_weight: found shape (0, 0), expected sizes above 0");
  EXPECT_EQ(
      problem({{"in_proj_weight", {24, 8}}, {"in_proj_bias", {24}}, {"out_proj.weight", {8, 8}}}),
      "tensor out_proj.bias: found nothing, expected it beside the block's others");
  EXPECT_EQ(problem({{"in_proj_weight", {24, 8}},
                     {"out_proj.weight", {8, 8}},
                     {"bias_k", {1, 1, 8}},
                     {"bias_v", {8}}}),
            "tensor bias_v: found shape (8,), expected shape (1, 1, 8)");
  EXPECT_EQ(problem({{"q_proj_weight", {8, 8}},
                     {"k_proj_weight", {3, 5}},
                     {"v_proj_weight", {8, 5}},
                     {"out_proj.weight", {8, 8}}}),
            "tensor k_proj_weight: found shape (3, 5), expected shape (8, 5)");
  EXPECT_EQ(problem({{"in_proj_weight", {24, 8}}, {"out_proj.weight", {8, 8}}}, DType::i32),
            "tensor in_proj_weight: found dtype I32, expected a floating dtype that headwise "
            "computes with");
  auto bert = bert_layer("", 6);
  bert[3].shape = {7};
  EXPECT_EQ(problem(bert), "tensor self.key.bias: found shape (7,), expected shape (6,)");
}

}  // namespace
}  // namespace headwise
