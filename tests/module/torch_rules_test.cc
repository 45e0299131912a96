// What a wrong call throws, and how masks reach attention.
#include "module/torch_rules.h"

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "support/tensors.h"

namespace headwise::module {
namespace {

// Memory for views that are checked and never read.
alignas(8) unsigned char memory[8192];

ConstTensorView view(Shape shape, DType dtype = DType::f32) { return {memory, dtype, shape}; }

struct WrongCall {
  std::string name;
  std::string message;  // all of it
  ConstTensorView query, key, value;
  ForwardOptions options;
  MultiheadAttentionOptions module{.embed_dim = 8, .num_heads = 2};
  bool is_dtype_error = false;
};

// Sequence first: query (3, 2, 8), key and value (5, 2, 8).
WrongCall wrong(std::string name, std::string message) {
  return {std::move(name), std::move(message), view({3, 2, 8}),
          view({5, 2, 8}), view({5, 2, 8}),    {}};
}

void expect_error(const WrongCall& call) {
  SCOPED_TRACE(call.name);
  const Sizes sizes = check_options(call.module);
  try {
    check_call(call.module, sizes,
               {{"query", call.query}, {"key", call.key}, {"value", call.value}}, call.options);
    ADD_FAILURE() << "nothing thrown";
  } catch (const DTypeError& e) {
    EXPECT_TRUE(call.is_dtype_error) << "is a DTypeError";
    EXPECT_EQ(e.what(), call.message);
  } catch (const ArgumentError& e) {
    EXPECT_FALSE(call.is_dtype_error) << "is an ArgumentError";
    EXPECT_EQ(e.what(), call.message);
  }
}

TEST(TorchRules, WrongInputs) {
  std::vector<WrongCall> calls;
  const auto add = [&](const char* name, const char* message) -> WrongCall& {
    return calls.emplace_back(wrong(name, message));
  };
  add("query 1-D", "query: found shape (8,), expected 2 dims, or 3 with a batch").query = view({8});
  add("query 4-D", "query: found shape (1, 3, 2, 8), expected 2 dims, or 3 with a batch").query =
      view({1, 3, 2, 8});
  add("query width", "query: found shape (3, 2, 7), expected a last dim of 8 (embed_dim)").query =
      view({3, 2, 7});
  add("query null",
      "query: found null data for shape (3, 2, 8), expected a pointer to its elements")
      .query.data = nullptr;
  add("query strides", "query: found a view with 3 dims and 2 strides, expected one stride per dim")
      .query.strides = {16, 8};
  add("key rank", "key: found shape (5, 8), expected 3 dims, as query has").key = view({5, 8});
  add("key width", "key: found shape (5, 2, 6), expected a last dim of 8 (kdim)").key =
      view({5, 2, 6});
  add("value width", "value: found shape (5, 2, 6), expected a last dim of 8 (vdim)").value =
      view({5, 2, 6});
  add("key batch", "key: found shape (5, 3, 8), expected (5, 2, 8), the batch of query (3, 2, 8)")
      .key = view({5, 3, 8});
  add("value length", "value: found shape (4, 2, 8), expected (5, 2, 8) (as many rows as key)")
      .value = view({4, 2, 8});
  add("value batch", "value: found shape (5, 1, 8), expected (5, 2, 8) (as many rows as key)")
      .value = view({5, 1, 8});
  {
    WrongCall& c = add("query dtype", "query: found dtype f64, expected f32");
    c.query = view({3, 2, 8}, DType::f64);
    c.is_dtype_error = true;
  }
  {
    WrongCall& c = add("key dtype", "key: found dtype bf16, expected f32");
    c.key = view({5, 2, 8}, DType::bf16);
    c.is_dtype_error = true;
  }
  {
    WrongCall& c = add("value dtype", "value: found dtype i32, expected f32");
    c.value = view({5, 2, 8}, DType::i32);
    c.is_dtype_error = true;
  }
  {
    WrongCall& c = add("kdim", "key: found shape (5, 2, 8), expected a last dim of 6 (kdim)");
    c.module.kdim = 6;
  }
  {
    WrongCall& c = add("sizes overflow",
                       "query: found shape (4611686018427387904, 2, 8) with its strides, expected "
                       "a tensor whose size in bytes fits the address space");
    c.query = ConstTensorView(memory, DType::f32, {std::size_t{1} << 62, 2, 8}, {16, 8, 1});
  }
  for (const WrongCall& call : calls) expect_error(call);
}

// Views that repeat one row, or none, can have more rows than memory has bytes.
TEST(TorchRules, TooManyRowsToProject) {
  const std::size_t huge = std::size_t{1} << 60, most = ~std::size_t{0};
  const auto repeated = [](std::size_t T, std::size_t B) {
    return ConstTensorView(memory, DType::f32, {T, B, 1}, {0, 0, 0});
  };
  WrongCall call = wrong("key",
                         "key: found shape (1152921504606846976, 2, 1), expected rows whose "
                         "projections to 8 features fit the address space");
  call.module.kdim = call.module.vdim = 1;
  call.key = call.value = repeated(huge, 2);
  expect_error(call);
  call.query = view({3, 0, 8});
  call.key = call.value = repeated(most, 0);
  call.message =
      "key: found shape (18446744073709551615, 0, 1), expected rows whose projections to 8 "
      "features fit the address space";
  expect_error(call);
  call.query = ConstTensorView(memory, DType::f32, {huge / 8, 2, 8}, {0, 0, 0});
  call.key = call.value = repeated(1, 2);
  call.message =
      "query: found shape (144115188075855872, 2, 8), expected rows whose projections to 8 "
      "features fit the address space";
  expect_error(call);
}

TEST(TorchRules, WrongMasks) {
  std::vector<WrongCall> calls;
  const auto attn = [&](const char* name, const char* message, const Mask& mask) -> WrongCall& {
    WrongCall& c = calls.emplace_back(wrong(name, message));
    c.options.attn_mask = mask;
    return c;
  };
  const auto padding = [&](const char* name, const char* message, const Mask& mask) -> WrongCall& {
    WrongCall& c = calls.emplace_back(wrong(name, message));
    c.options.key_padding_mask = mask;
    return c;
  };
  const std::string shapes = "expected (3, 5), (4, 3, 5), (2, 1, 3, 5) or (2, 2, 3, 5)";
  const auto boolean = [](Shape shape) { return Mask::ignore(view(shape, DType::boolean)); };
  attn("mask 1-D", ("attn_mask: found shape (5,), " + shapes).c_str(), boolean({5}));
  attn("mask broadcast", ("attn_mask: found shape (1, 5), " + shapes).c_str(), boolean({1, 5}));
  attn("mask turned", ("attn_mask: found shape (5, 3), " + shapes).c_str(), boolean({5, 3}));
  attn("mask 3-D", ("attn_mask: found shape (2, 3, 5), " + shapes).c_str(), boolean({2, 3, 5}));
  attn("mask 4-D", ("attn_mask: found shape (1, 2, 3, 5), " + shapes).c_str(),
       boolean({1, 2, 3, 5}));
  attn("mask 5-D", ("attn_mask: found shape (1, 2, 2, 3, 5), " + shapes).c_str(),
       boolean({1, 2, 2, 3, 5}));
  attn("mask with appended column", ("attn_mask: found shape (3, 6), " + shapes).c_str(),
       boolean({3, 6}))
      .module.add_zero_attn = true;
  attn("mask null",
       "attn_mask: found null data for shape (3, 5), expected a pointer to its elements",
       Mask::ignore(ConstTensorView(nullptr, DType::boolean, {3, 5})));
  attn("float mask as ignore",
       "attn_mask: found dtype f32, expected bool for Mask::keep and Mask::ignore",
       Mask::ignore(view({3, 5})))
      .is_dtype_error = true;
  attn("u8 mask", "attn_mask: found dtype u8, expected bool for Mask::keep and Mask::ignore",
       Mask::keep(view({3, 5}, DType::u8)))
      .is_dtype_error = true;
  attn("double bias", "attn_mask: found dtype f64, expected f32 for Mask::bias",
       Mask::bias(view({3, 5}, DType::f64)))
      .is_dtype_error = true;
  attn("half bias beside f32", "attn_mask: found dtype f16, expected f32 for Mask::bias",
       Mask::bias(view({3, 5}, DType::f16)))
      .is_dtype_error = true;
  {
    WrongCall& c = attn("f16 bias beside bf16",
                        "attn_mask: found dtype f16, expected bf16 or f32 for Mask::bias",
                        Mask::bias(view({3, 5}, DType::f16)));
    c.module.dtype = DType::bf16;
    c.query.dtype = c.key.dtype = c.value.dtype = DType::bf16;
    c.is_dtype_error = true;
  }
  attn("integer bias", "attn_mask: found dtype i64, expected f32 for Mask::bias",
       Mask::bias(view({3, 5}, DType::i64)))
      .is_dtype_error = true;
  padding("padding 1-D", "key_padding_mask: found shape (5,), expected (2, 5) (batch and keys)",
          boolean({5}));
  padding("padding turned",
          "key_padding_mask: found shape (5, 2), expected (2, 5) (batch and keys)",
          boolean({5, 2}));
  padding("padding of the query",
          "key_padding_mask: found shape (2, 3), expected (2, 5) (batch and keys)",
          boolean({2, 3}));
  padding("padding dtype", "key_padding_mask: found dtype f64, expected f32 for Mask::bias",
          Mask::bias(view({2, 5}, DType::f64)))
      .is_dtype_error = true;
  padding("padding null",
          "key_padding_mask: found null data for shape (2, 5), expected a pointer to its elements",
          Mask::keep(ConstTensorView(nullptr, DType::boolean, {2, 5})));
  {
    WrongCall& c =
        padding("unbatched padding 2-D",
                "key_padding_mask: found shape (1, 5), expected (5,) (keys)", boolean({1, 5}));
    c.query = view({3, 8});
    c.key = c.value = view({5, 8});
  }
  for (const WrongCall& call : calls) expect_error(call);
}

void expect_option_error(const MultiheadAttentionOptions& options, const std::string& message) {
  try {
    check_options(options);
    ADD_FAILURE() << "nothing thrown, expected " << message;
  } catch (const ArgumentError& e) {
    EXPECT_EQ(e.what(), message);
  }
}

TEST(TorchRules, WrongOptions) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_option_error({.embed_dim = 0, .num_heads = 2}, "embed_dim: found 0, expected at least 1");
  expect_option_error({.embed_dim = 8, .num_heads = 0}, "num_heads: found 0, expected at least 1");
  expect_option_error({.embed_dim = 10, .num_heads = 3},
                      "embed_dim: found 10, which num_heads 3 does not divide, expected a multiple "
                      "of num_heads, or head_dim given");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .dropout = nan},
                      "dropout: found nan, expected a probability in [0, 1]");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .dropout = -0.5},
                      "dropout: found -0.500000, expected a probability in [0, 1]");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .dropout = 1.5},
                      "dropout: found 1.500000, expected a probability in [0, 1]");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .kdim = 0},
                      "kdim: found 0, expected at least 1");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .vdim = 0},
                      "vdim: found 0, expected at least 1");
  expect_option_error({.embed_dim = 8, .num_heads = 4, .num_kv_heads = 3},
                      "num_kv_heads: found 3, expected a divisor of num_heads 4");
  expect_option_error({.embed_dim = 8, .num_heads = 4, .num_kv_heads = 0},
                      "num_kv_heads: found 0, expected at least 1");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .head_dim = 0},
                      "head_dim: found 0, expected at least 1");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .dtype = DType::boolean},
                      "dtype: found dtype bool, expected f32, f64, bf16 or f16");
  expect_option_error(
      {.embed_dim = std::size_t{1} << 40, .num_heads = 2},
      "embed_dim: found 1099511627776 with 2 heads of 549755813888, expected tables "
      "whose size in bytes fits the address space");
  expect_option_error({.embed_dim = 8, .num_heads = 2, .head_dim = SIZE_MAX},
                      "embed_dim: found 8 with 2 heads of 18446744073709551615, expected tables "
                      "whose size in bytes fits the address space");
  expect_option_error(
      {.embed_dim = 8,
       .num_heads = 2,
       .add_bias_kv = true,
       .names = MultiheadAttentionOptions::Names::fused},
      "add_bias_kv: found true, expected false with the names of the bias-free module");
  expect_option_error(
      {.embed_dim = 8, .num_heads = 2, .kdim = 4, .names = MultiheadAttentionOptions::Names::fused},
      "kdim, vdim: found 4, 8, expected embed_dim 8, because qkv_proj.weight is one table");
  EXPECT_NO_THROW(check_options({.embed_dim = 8, .num_heads = 2, .dropout = 1.0}));
  EXPECT_NO_THROW(check_options({.embed_dim = 10, .num_heads = 3, .head_dim = 4}));
}

Call call_with(const ForwardOptions& options, const Shape& query = {3, 2, 8},
               const Shape& key = {5, 2, 8}) {
  const MultiheadAttentionOptions module{.embed_dim = 8, .num_heads = 2};
  return check_call(module, check_options(module),
                    {{"query", view(query)}, {"key", view(key)}, {"value", view(key)}}, options);
}

TEST(TorchRules, MasksKeepTheirMemory) {
  const Mask three = Mask::ignore(view({4, 3, 5}, DType::boolean));
  const Mask padding = Mask::keep(view({2, 5}, DType::boolean));
  const Call call = call_with({.key_padding_mask = padding, .attn_mask = three});
  EXPECT_EQ(call.attention.mask->view().data, memory);
  EXPECT_EQ(call.attention.mask->view().shape, (Shape{2, 2, 3, 5}));
  EXPECT_EQ(call.attention.mask->view().strides, (Strides{30, 15, 5, 1}));
  EXPECT_EQ(call.attention.second_mask->view().shape, (Shape{2, 1, 1, 5}));
  EXPECT_EQ(call.attention.second_mask->view().strides, (Strides{5, 0, 0, 1}));
  EXPECT_EQ(call.attention.second_mask->kind(), Mask::Kind::keep);
}

TEST(TorchRules, HintWithoutMaskIsCausal) {
  EXPECT_EQ(call_with({.is_causal = true}).attention.causal, CausalAlign::top_left);
  const Mask mask = Mask::ignore(view({3, 5}, DType::boolean));
  EXPECT_FALSE(call_with({.attn_mask = mask, .is_causal = true}).attention.causal)
      << "the mask is what counts";
  const Mask padding = Mask::keep(view({2, 5}, DType::boolean));
  EXPECT_TRUE(call_with({.key_padding_mask = padding, .is_causal = true}).attention.causal);
}

TEST(TorchRules, StrictHintHasToAgreeWithTheMask) {
  const bool causal[] = {false, true, true, false, false, true, false, false, false};
  bool other[9];
  std::copy(causal, causal + 9, other);
  const auto run = [](const Mask& mask) {
    call_with({.attn_mask = mask, .is_causal = true, .strict = true}, {3, 2, 8}, {3, 2, 8});
  };
  EXPECT_NO_THROW(run(Mask::ignore(ConstTensorView(causal, {3, 3}))));
  other[1] = false;
  try {
    run(Mask::ignore(ConstTensorView(other, {3, 3})));
    ADD_FAILURE();
  } catch (const ArgumentError& e) {
    EXPECT_STREQ(
        e.what(),
        "is_causal: found true, but attn_mask shows key 1 to query 0, expected a mask that "
        "hides exactly the keys after each query");
  }
  other[1] = true;
  other[3] = true;
  EXPECT_THROW(run(Mask::ignore(ConstTensorView(other, {3, 3}))), ArgumentError);
  const float inf = std::numeric_limits<float>::infinity();
  const float bias[] = {0, -inf, -inf, 0.5f, 0, -inf, 0, 0, -1};
  EXPECT_NO_THROW(run(Mask::bias(ConstTensorView(bias, {3, 3}))));
  EXPECT_THROW(run(Mask::bias(ConstTensorView(bias, DType::f32, {3, 3}, {0, 1}))), ArgumentError);
}

}  // namespace
}  // namespace headwise::module
