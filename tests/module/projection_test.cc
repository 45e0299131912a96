#include "module/projection.h"

#include <vector>

#include "gtest/gtest.h"
#include "support/tensors.h"

namespace headwise::module {
namespace {

const MultiheadAttentionOptions kOptions{
    .embed_dim = 8, .num_heads = 4, .add_bias_kv = true, .add_zero_attn = true, .num_kv_heads = 2};

Rows rows(Shape shape, bool batch_outer) {
  return {ConstTensorView(nullptr, DType::f32, shape), batch_outer};
}

TEST(HeadsBuffer, AppendedStepsFollowInTime) {
  const HeadsBuffer batch_first(rows({2, 5, 8}, true), 8, 2, DType::f32);
  EXPECT_EQ(batch_first.outer, 2u);
  EXPECT_EQ(batch_first.inner, 7u);
  const HeadsBuffer sequence_first(rows({5, 2, 8}, false), 8, 2, DType::f32);
  EXPECT_EQ(sequence_first.outer, 7u);
  EXPECT_EQ(sequence_first.inner, 2u);
  for (const HeadsBuffer* buffer : {&batch_first, &sequence_first}) {
    const TensorView heads = buffer->heads(4);
    EXPECT_EQ(heads.shape, (Shape{2, 4, 7, 2}));
    EXPECT_EQ(heads.strides[1], 2);
    EXPECT_EQ(heads.strides[3], 1);
  }
}

TEST(HeadsBuffer, RowsDoNotShareTheirPlaceInTheCaches) {
  for (std::size_t width : {1u, 16u, 250u, 256u, 512u, 1024u, 768u})
    for (DType dtype : {DType::f32, DType::f64}) {
      const HeadsBuffer buffer(rows({1, 4, width}, true), width, 0, dtype);
      EXPECT_GE(buffer.ld, width);
      EXPECT_LE(buffer.ld, width + 48);
      EXPECT_NE(buffer.ld * size_of(dtype) % 1024, 0u);
    }
}

TEST(Projection, OnlyWhatChangedIsPackedAgain) {
  const Sizes sizes = check_options(kOptions);
  Parameters before(kOptions, sizes);
  Generator generator(3);
  before.draw(generator);
  const Projections first(before);
  Parameters biased = before;
  biased.set("in_proj_bias", test::gaussian(DType::f32, {16}, 4));
  const Projections second(biased, &first);
  EXPECT_EQ(second.q.panel(0), first.q.panel(0));
  EXPECT_EQ(second.v.panel(0), first.v.panel(0));
  EXPECT_NE(*reinterpret_cast<const float*>(second.q.bias(0)), 0.0f);
  Parameters turned = biased;
  turned.set("out_proj.weight", test::gaussian(DType::f32, {8, 8}, 5));
  const Projections third(turned, &second);
  EXPECT_EQ(third.k.panel(0), first.k.panel(0));
  EXPECT_NE(third.out.panel(0), first.out.panel(0));
  EXPECT_EQ(*reinterpret_cast<const float*>(third.out.panel(0)),
            test::get(turned.view("out_proj.weight"), 0));
}

TEST(Projection, EqualsTheProductStepByStep) {
  const Sizes sizes = check_options(kOptions);
  Parameters parameters(kOptions, sizes);
  Generator generator(3);
  parameters.draw(generator);
  parameters.set("in_proj_bias", test::gaussian(DType::f32, {16}, 4));
  const Projections projections(parameters);

  const Tensor x = test::gaussian(DType::f32, {3, 2, 8}, 5);  // sequence first
  const Call call = check_call(kOptions, sizes, {{"query", x}, {"key", x}, {"value", x}}, {});
  Heads heads(call, sizes, DType::f32);
  auto& [q, k, v, o] = heads;
  std::vector<std::vector<std::byte>> memory;
  for (HeadsBuffer* buffer : {&q, &k, &v})
    buffer->data = memory.emplace_back(buffer->bytes()).data();
  project_inputs(projections, call, heads);

  const HeadsBuffer* buffers[] = {&q, &k, &v};
  std::size_t row = 0;  // of in_proj_weight
  for (std::size_t part = 0; part < 3; ++part) {
    const HeadsBuffer& buffer = *buffers[part];
    for (std::size_t n = 0; n < buffer.width; ++n, ++row)
      for (std::size_t t = 0; t < 3; ++t)
        for (std::size_t b = 0; b < 2; ++b) {
          double sum = test::get(parameters.view("in_proj_bias"), row);
          for (std::size_t i = 0; i < 8; ++i)
            sum += test::get(parameters.view("in_proj_weight"), row * 8 + i) *
                   test::get(x.view(), (t * 2 + b) * 8 + i);
          EXPECT_NEAR(reinterpret_cast<const float*>(buffer.step(t, b))[n], sum, 2e-6);
        }
  }
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t n = 0; n < 4; ++n) {
      EXPECT_EQ(reinterpret_cast<const float*>(k.step(3, b))[n],
                test::get(parameters.view("bias_k"), n));
      EXPECT_EQ(reinterpret_cast<const float*>(v.step(3, b))[n],
                test::get(parameters.view("bias_v"), n));
      EXPECT_EQ(reinterpret_cast<const float*>(k.step(4, b))[n], 0.0f);
      EXPECT_EQ(reinterpret_cast<const float*>(v.step(4, b))[n], 0.0f);
    }
}

}  // namespace
}  // namespace headwise::module
