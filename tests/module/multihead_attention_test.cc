// The whole module against its definition in double, for every pair of option values; what it
// promises about bits, threads and callers.
#include "headwise/multihead_attention.h"

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "support/isas.h"
#include "support/module_case.h"
#include "support/tensors.h"
#include "support/threads.h"

namespace headwise {
namespace {

using test::ModuleCall;
using test::ModuleCase;
using test::random_case;

std::string bytes_of(const Tensor& t) {
  return {static_cast<const char*>(t.view().data), t.size() * size_of(t.dtype())};
}

TEST(MultiheadAttention, EveryPairOfOptionsAgreesWithTheDefinition) {
  std::mt19937 engine(3);
  unsigned seed = 0;
  for (int a = 0; a < ModuleCase::n_options; ++a)
    for (int b = a + 1; b < ModuleCase::n_options; ++b)
      for (int x = 0; x < ModuleCase::kValues[a]; ++x)
        for (int y = 0; y < ModuleCase::kValues[b]; ++y) {
          ModuleCase c = random_case(engine);
          c.value[a] = x;
          c.value[b] = y;
          ModuleCall(c, ++seed).check();
          if (HasFatalFailure()) return;
        }
}

TEST(MultiheadAttention, AgreesWithTheDefinitionOnEveryInstructionSet) {
  test::for_each_isa([] {
    std::mt19937 engine(4);
    for (unsigned seed = 0; seed < 40; ++seed) ModuleCall(random_case(engine), seed).check();
  });
}

struct Inputs {
  MultiheadAttention module;
  Tensor x;
};

Inputs make_inputs(DType dtype, std::size_t B, std::size_t T, std::size_t E = 64) {
  MultiheadAttentionOptions options{.embed_dim = E, .num_heads = 4, .batch_first = true};
  options.dtype = dtype;
  Generator generator(7);
  MultiheadAttention module(options, generator);
  module.eval();
  return {std::move(module), test::gaussian(dtype, {B, T, E}, 8)};
}

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

TEST(MultiheadAttention, BitsDoNotDependOnThreads) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(name_of(dtype));
    const Inputs in = make_inputs(dtype, 3, 130);
    const auto run = [&] {
      const ForwardResult r = in.module.forward(in.x, in.x, in.x);
      return bytes_of(r.output) + bytes_of(*r.weights);
    };
    const std::string one = [&] {
      const test::ScopedThreads threads(1);
      return run();
    }();
    for (int n : {2, 5}) {
      const test::ScopedThreads threads(n);
      EXPECT_TRUE(run() == one) << n << " threads";
    }
  }
}

TEST(MultiheadAttention, BitsAreTheSameAloneAndInABatch) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(name_of(dtype));
    const std::size_t B = 3, T = 65, E = 64;
    const Inputs in = make_inputs(dtype, B, T);
    const ForwardResult all = in.module.forward(in.x, in.x, in.x);
    for (std::size_t b = 0; b < B; ++b) {
      ConstTensorView one = in.x.view();
      const std::size_t bytes = T * E * size_of(dtype);
      one.data = static_cast<const std::byte*>(one.data) + b * bytes;
      one.shape[0] = 1;
      const ForwardResult alone = in.module.forward(one, one, one);
      EXPECT_TRUE(bytes_of(alone.output) == bytes_of(all.output).substr(b * bytes, bytes));
      const std::string weights = bytes_of(*alone.weights);
      EXPECT_TRUE(weights == bytes_of(*all.weights).substr(b * weights.size(), weights.size()));
    }
  }
}

TEST(MultiheadAttention, BitsAreTheSameOnEveryInstructionSetWithFusedMultiplyAdd) {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Inputs in = make_inputs(dtype, 2, 70);
    std::string first;
    for (const std::string& name : available_isas()) {
      if (!test::has_fma(name)) continue;
      const test::ScopedIsa forced(name);
      const ForwardResult r = in.module.forward(in.x, in.x, in.x);
      const std::string bytes = bytes_of(r.output) + bytes_of(*r.weights);
      if (first.empty()) first = bytes;
      EXPECT_TRUE(bytes == first) << name;
    }
  }
}

TEST(MultiheadAttention, OutputBitsDoNotDependOnWeights) {
  for (DType dtype : kTypes) {
    const Inputs in = make_inputs(dtype, 2, 33);
    const std::string with = bytes_of(in.module.forward(in.x, in.x, in.x).output);
    EXPECT_TRUE(with ==
                bytes_of(in.module.forward(in.x, in.x, in.x, {.need_weights = false}).output));
    EXPECT_TRUE(
        with ==
        bytes_of(in.module.forward(in.x, in.x, in.x, {.average_attn_weights = false}).output));
  }
}

TEST(MultiheadAttention, AnyStridesGiveTheSameBits) {
  for (DType dtype : kTypes) {
    const Inputs in = make_inputs(dtype, 2, 9);
    const std::string plain = bytes_of(in.module.forward(in.x, in.x, in.x).output);
    // The same values, sequence first in memory and every second element.
    Tensor spread(dtype, {9, 2, 64, 2});
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t t = 0; t < 9; ++t)
        for (std::size_t e = 0; e < 64; ++e)
          test::put(spread.view(), ((t * 2 + b) * 64 + e) * 2,
                    test::get(in.x.view(), (b * 9 + t) * 64 + e));
    const ConstTensorView view(spread.view().data, dtype, {2, 9, 64}, {128, 256, 2});
    EXPECT_TRUE(plain == bytes_of(in.module.forward(view, view, view).output));
  }
}

TEST(MultiheadAttention, EmptyInputsGiveEmptyShapes) {
  const Inputs in = make_inputs(DType::f32, 1, 1);
  const auto shapes = [&](Shape query, Shape key) {
    const Tensor q = Tensor::zeros(DType::f32, query), k = Tensor::zeros(DType::f32, key);
    const ForwardResult r = in.module.forward(q, k, k, {.average_attn_weights = false});
    for (float y : r.output.values<float>()) EXPECT_EQ(y, 0.0f);  // the output bias
    return to_string(r.output.shape()) + to_string(r.weights->shape());
  };
  EXPECT_EQ(shapes({0, 5, 64}, {0, 7, 64}), "(0, 5, 64)(0, 4, 5, 7)");
  EXPECT_EQ(shapes({2, 0, 64}, {2, 7, 64}), "(2, 0, 64)(2, 4, 0, 7)");
  EXPECT_EQ(shapes({2, 5, 64}, {2, 0, 64}), "(2, 5, 64)(2, 4, 5, 0)");
  EXPECT_EQ(shapes({0, 64}, {0, 64}), "(0, 64)(4, 0, 0)");
}

TEST(MultiheadAttention, NaNInAVisibleInputIsNotHidden) {
  Inputs in = make_inputs(DType::f32, 2, 4);
  in.x.data<float>()[0] = NAN;
  const ForwardResult r = in.module.forward(in.x, in.x, in.x);
  EXPECT_TRUE(std::isnan(r.output.data<float>()[3 * 64]));
  EXPECT_FALSE(std::isnan(r.output.data<float>()[4 * 64])) << "the other batch sees nothing of it";
}

TEST(MultiheadAttention, PaddedNaNNeverReachesTheOutput) {
  for (DType dtype : kTypes) {
    Inputs in = make_inputs(dtype, 1, 4);
    Tensor clean = Tensor::copy_of(in.x.view());
    for (std::size_t e = 0; e < 64; ++e) test::put(in.x.view(), 3 * 64 + e, NAN);
    const bool padding[] = {false, false, false, true};
    const ForwardOptions options{.key_padding_mask =
                                     Mask::ignore(ConstTensorView(padding, {1, 4}))};
    const std::string with = bytes_of(in.module.forward(clean, in.x, in.x, options).output);
    EXPECT_TRUE(with == bytes_of(in.module.forward(clean, clean, clean, options).output));
  }
}

TEST(MultiheadAttention, TwoCallersAtOnce) {
  const Inputs in = make_inputs(DType::f32, 2, 100);
  const std::string expected = bytes_of(in.module.forward(in.x, in.x, in.x).output);
  std::vector<std::thread> callers;
  std::vector<int> wrong(2);
  for (int n = 0; n < 2; ++n)
    callers.emplace_back([&, n] {
      for (int i = 0; i < 10; ++i)
        wrong[n] += bytes_of(in.module.forward(in.x, in.x, in.x).output) != expected;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, (std::vector<int>{0, 0}));
}

TEST(MultiheadAttention, TrainAndEval) {
  MultiheadAttention module({.embed_dim = 8, .num_heads = 2, .dropout = 0.5});
  EXPECT_TRUE(module.training()) << "as torch's";
  const Tensor x = test::gaussian(DType::f32, {3, 1, 8}, 1);
  const std::string seed0 = bytes_of(module.forward(x, x, x).output);
  EXPECT_EQ(seed0, bytes_of(module.forward(x, x, x).output));
  EXPECT_NE(seed0, bytes_of(module.forward(x, x, x, {.dropout_seed = 1}).output));
  module.eval();
  EXPECT_FALSE(module.training());
  EXPECT_EQ(bytes_of(module.forward(x, x, x).output),
            bytes_of(module.forward(x, x, x, {.dropout_seed = 1}).output));
}

TEST(MultiheadAttention, MovesKeepTheModule) {
  MultiheadAttention first({.embed_dim = 8, .num_heads = 2, .num_kv_heads = 1, .head_dim = 3});
  const MultiheadAttention second = std::move(first);
  EXPECT_EQ(second.head_dim(), 3u);
  EXPECT_EQ(second.num_kv_heads(), 1u);
  EXPECT_EQ(second.options().embed_dim, 8u);
}

TEST(MultiheadAttention, TheCallersMemoryGetsTheSameBits) {
  for (DType dtype : kTypes)
    for (const bool average : {true, false}) {
      const std::size_t B = 2, T = 9, E = 64;
      const Inputs in = make_inputs(dtype, B, T);
      const ForwardOptions options{.average_attn_weights = average};
      const ForwardResult expected = in.module.forward(in.x, in.x, in.x, options);
      // Sequence first in memory, every second element; the weights transposed.
      Tensor spread = Tensor::zeros(dtype, {T, B, E, 2});
      Tensor weights(dtype, expected.weights->shape());
      const TensorView output(spread.view().data, dtype, {B, T, E}, {2 * E, 2 * B * E, 2});
      TensorView turned = weights.view();
      std::swap(turned.strides[turned.rank() - 1], turned.strides[turned.rank() - 2]);
      in.module.forward(in.x, in.x, in.x, options, output, turned);
      EXPECT_TRUE(bytes_of(Tensor::copy_of(output)) == bytes_of(expected.output));
      EXPECT_TRUE(bytes_of(Tensor::copy_of(turned)) == bytes_of(*expected.weights));
      in.module.forward(in.x, in.x, in.x, options, output);  // need_weights is not looked at
      EXPECT_TRUE(bytes_of(Tensor::copy_of(output)) == bytes_of(expected.output));
    }
}

TEST(MultiheadAttention, WrongOutputsAreRefusedBeforeAnythingIsWritten) {
  const Inputs in = make_inputs(DType::f32, 2, 9);
  Tensor output = Tensor::zeros(DType::f32, {2, 9, 64});
  Tensor weights = Tensor::zeros(DType::f32, {2, 9, 9});
  const std::string before = bytes_of(output);
  const auto error = [&](const TensorView& o, const TensorView& w) -> std::string {
    try {
      in.module.forward(in.x, in.x, in.x, {}, o, w);
    } catch (const ArgumentError& e) {
      EXPECT_TRUE(bytes_of(output) == before);
      return e.what();
    }
    return "";
  };
  const TensorView o = output.view(), w = weights.view();
  EXPECT_EQ(error({o.data, DType::f32, {2, 9, 63}}, w),
            "output: found shape (2, 9, 63), expected (2, 9, 64)");
  EXPECT_EQ(error({o.data, DType::f32, {2, 9, 64}, {0, 64, 1}}, w),
            "output: found strides (0, 64, 1) for shape (2, 9, 64), expected memory of its own for "
            "each element");
  EXPECT_EQ(error({const_cast<void*>(in.x.view().data), DType::f32, {2, 9, 64}}, w),
            "output: found memory shared with query, expected memory of its own");
  EXPECT_EQ(error(o, {o.data, DType::f32, {2, 9, 9}}),
            "weights: found memory shared with output, expected memory of its own");
  EXPECT_EQ(error(o, {w.data, DType::f32, {2, 4, 9, 9}}),
            "weights: found shape (2, 4, 9, 9), expected (2, 9, 9)");
  EXPECT_EQ(error({o.data, DType::f64, {2, 9, 64}}, w), "output: found dtype f64, expected f32");
  EXPECT_EQ(error({nullptr, DType::f32, {2, 9, 64}}, w),
            "output: found null data for shape (2, 9, 64), expected a pointer to its elements");
}

TEST(MultiheadAttention, TablesInBf16GiveTheBitsOfRoundedTables) {
  for (const std::size_t T : {1u, 2u, 3u, 40u}) {
    const MultiheadAttentionOptions options{.embed_dim = 72, .num_heads = 4, .batch_first = true};
    MultiheadAttentionOptions narrow = options;
    narrow.weight_dtype = DType::bf16;
    Generator generator(7);
    MultiheadAttention wide(options, generator), mixed(narrow, generator);
    mixed.load_state_dict(wide.parameters());
    mixed.set_parameter("in_proj_bias", test::gaussian(DType::f32, {3 * 72}, 3).view());
    for (const NamedView& p : mixed.parameters())
      EXPECT_EQ(p.view.dtype, p.view.rank() == 2 ? DType::bf16 : DType::f32) << p.name;
    wide.load_state_dict(mixed.parameters());  // rounded, as f32
    const Tensor x = test::gaussian(DType::f32, {1, T, 72}, 8);
    EXPECT_TRUE(bytes_of(mixed.forward(x, x, x).output) == bytes_of(wide.forward(x, x, x).output));
    const std::string path = ::testing::TempDir() + "mixed.safetensors";
    mixed.save(path);
    MultiheadAttention loaded = MultiheadAttention::load(path, 4);
    EXPECT_EQ(loaded.options().dtype, DType::f32);
    EXPECT_EQ(loaded.options().weight_dtype, DType::bf16);
  }
  EXPECT_THROW(MultiheadAttention({.embed_dim = 8, .num_heads = 2, .weight_dtype = DType::f16}),
               DTypeError);
  EXPECT_THROW(
      MultiheadAttention(
          {.embed_dim = 8, .num_heads = 2, .dtype = DType::f64, .weight_dtype = DType::bf16}),
      DTypeError);
}

}  // namespace
}  // namespace headwise
