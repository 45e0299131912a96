// Wrong calls of scaled_dot_product_attention: each throws the right type, names the argument, what
// was found and what was expected, and leaves the outputs alone. Past 400 lines: one table.
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/error.h"

namespace headwise {
namespace {

constexpr auto kHuge = std::size_t{1} << 62;

// A right call on (B, n_heads, T_q, d_head) = (2, 4, 3, 5), two KV heads, T_k = 6, d_v = 7.
struct CallArguments {
  std::vector<float> memory = std::vector<float>(4096, 0.5f);
  std::vector<char> flags = std::vector<char>(1024, 1);
  std::vector<float> out = std::vector<float>(4096, 42.0f);
  TensorView q{memory.data(), DType::f32, {2, 4, 3, 5}};
  TensorView k{memory.data() + 500, DType::f32, {2, 2, 6, 5}};
  TensorView v{memory.data() + 1000, DType::f32, {2, 2, 6, 7}};
  TensorView o{out.data(), DType::f32, {2, 4, 3, 7}};
  AttentionOptions options;
  AttentionExtras extras;

  TensorView extra(std::size_t at, Shape shape) {
    return {out.data() + 1000 * at, DType::f32, shape};
  }
  TensorView mask(Shape shape, DType dtype = DType::boolean) {
    return {flags.data(), dtype, shape};
  }
  void call() { scaled_dot_product_attention(q, k, v, options, o, extras); }
};

struct WrongCall {
  const char* what;
  std::function<void(CallArguments&)> spoil;
  const char* argument;
  std::vector<std::string> said;  // parts of the message
  bool wrong_dtype = false;
};

const std::vector<WrongCall>& wrong_calls() {
  using A = CallArguments;
  static const std::vector<WrongCall> rows = {
      // ranks
      {"q of rank 1",
       [](A& a) {
         a.q = {a.memory.data(), DType::f32, {5}};
       },
       "q",
       {"1 dims in shape (5,)", "at least 2"}},
      {"k of rank 1",
       [](A& a) {
         a.k = {a.memory.data(), DType::f32, {5}};
       },
       "k",
       {"1 dims in shape (5,)", "at least 2"}},
      {"v of rank 0",
       [](A& a) {
         a.v = {a.memory.data(), DType::f32, {}};
       },
       "v",
       {"0 dims in shape ()", "at least 2"}},
      {"o of rank 3",
       [](A& a) {
         a.o = {a.out.data(), DType::f32, {8, 3, 7}};
       },
       "o",
       {"(8, 3, 7)", "(2, 4, 3, 7)"}},
      {"too many dims",
       [](A& a) {
         Shape shape;
         for (int n = 0; n < 17; ++n) shape.push_back(1);
         a.q = {a.memory.data(), DType::f32, shape};
       },
       "rank",
       {"17 dims", "at most 16"}},
      // sizes
      {"k of another width",
       [](A& a) { a.k.shape[3] = 4; },
       "k",
       {"d_head = 4 in shape (2, 2, 6, 4)", "d_head = 5 in shape (2, 4, 3, 5)"}},
      {"v longer than k (SH01)",
       [](A& a) { a.v.shape[2] = 8; },
       "v",
       {"T_k = 8 in shape (2, 2, 8, 7)", "T_k = 6 in shape (2, 2, 6, 5)"}},
      {"v shorter than k", [](A& a) { a.v.shape[2] = 0; }, "v", {"T_k = 0", "T_k = 6"}},
      {"k of another batch",
       [](A& a) { a.k.shape[0] = 3; },
       "k",
       {"leading dim 3 in shape (3, 2, 6, 5)", "2 or 1", "(2,)"}},
      {"v of another batch",
       [](A& a) { a.v.shape[0] = 3; },
       "v",
       {"leading dim 3 in shape (3, 2, 6, 7)", "2 or 1"}},
      {"batch of 0 beside 2", [](A& a) { a.v.shape[0] = 0; }, "v", {"leading dim 0", "2 or 1"}},
      {"leading dims that do not broadcast",
       [](A& a) {
         a.q = {a.memory.data(), DType::f32, {3, 2, 4, 3, 5}};
         a.k = {a.memory.data(), DType::f32, {2, 2, 2, 6, 5}};
       },
       "k",
       {"leading dim 2", "3 or 1", "(3, 2)"}},
      {"o too long",
       [](A& a) {
         a.o = {a.out.data(), DType::f32, {2, 4, 4, 7}};
       },
       "o",
       {"(2, 4, 4, 7)", "(2, 4, 3, 7)"}},
      {"o as wide as q",
       [](A& a) {
         a.o = {a.out.data(), DType::f32, {2, 4, 3, 5}};
       },
       "o",
       {"(2, 4, 3, 5)", "(2, 4, 3, 7)"}},
      {"o with the KV heads",
       [](A& a) {
         a.o = {a.out.data(), DType::f32, {2, 2, 3, 7}};
       },
       "o",
       {"(2, 2, 3, 7)", "(2, 4, 3, 7)"}},
      // heads
      {"4 query heads on 3 KV heads",
       [](A& a) { a.k.shape[1] = a.v.shape[1] = 3; },
       "k",
       {"n_kv_heads = 3", "divisor of q's n_heads = 4"}},
      {"2 query heads on 6 KV heads",
       [](A& a) {
         a.q.shape[1] = 2;
         a.k.shape[1] = a.v.shape[1] = 6;
       },
       "k",
       {"n_kv_heads = 6", "divisor of q's n_heads = 2"}},
      {"4 query heads on 0 KV heads",
       [](A& a) { a.k.shape[1] = a.v.shape[1] = 0; },
       "k",
       {"n_kv_heads = 0", "n_heads = 4"}},
      {"more value than key heads",
       [](A& a) { a.v.shape[1] = 4; },
       "v",
       {"n_kv_heads = 4 in shape (2, 4, 6, 7)", "n_kv_heads = 2 in shape (2, 2, 6, 5)"}},
      {"value heads alone do not divide",
       [](A& a) {
         a.k.shape[1] = 1;
         a.v.shape[1] = 3;
       },
       "v",
       {"n_kv_heads = 3", "n_heads = 4"}},
      {"groups without enable_gqa",
       [](A& a) { a.options.enable_gqa = false; },
       "k",
       {"n_kv_heads = 2", "n_heads = 4", "enable_gqa is false"}},
      // dtypes
      {"integer q",
       [](A& a) { a.q.dtype = DType::i32; },
       "q",
       {"dtype i32", "f32, f64, bf16 or f16"},
       true},
      {"boolean q", [](A& a) { a.q.dtype = DType::boolean; }, "q", {"dtype bool", "f32"}, true},
      {"f64 k", [](A& a) { a.k.dtype = DType::f64; }, "k", {"dtype f64", "q's dtype f32"}, true},
      {"bf16 v", [](A& a) { a.v.dtype = DType::bf16; }, "v", {"dtype bf16", "q's dtype f32"}, true},
      {"f16 o", [](A& a) { a.o.dtype = DType::f16; }, "o", {"dtype f16", "f32"}, true},
      {"f64 row_max of f32",
       [](A& a) {
         a.extras.row_max = a.extra(1, {2, 4, 3});
         a.extras.row_max.dtype = DType::f64;
       },
       "row_max",
       {"dtype f64", "f32"},
       true},
      {"bf16 row_sum",
       [](A& a) {
         a.extras.row_sum = a.extra(1, {2, 4, 3});
         a.extras.row_sum.dtype = DType::bf16;
       },
       "row_sum",
       {"dtype bf16", "f32"},
       true},
      {"f64 log_sum_exp",
       [](A& a) {
         a.extras.log_sum_exp = a.extra(1, {2, 4, 3});
         a.extras.log_sum_exp.dtype = DType::f64;
       },
       "log_sum_exp",
       {"dtype f64", "f32"},
       true},
      {"f16 weights of f32",
       [](A& a) {
         a.extras.weights = a.extra(1, {2, 4, 3, 6});
         a.extras.weights.dtype = DType::f16;
       },
       "weights",
       {"dtype f16", "f32"},
       true},
      {"f64 average_weights",
       [](A& a) {
         a.extras.average_weights = a.extra(1, {2, 3, 6});
         a.extras.average_weights.dtype = DType::f64;
       },
       "average_weights",
       {"dtype f64", "f32"},
       true},
      {"u8 keep mask",
       [](A& a) {
         a.options.mask = Mask::keep(a.mask({3, 6}, DType::u8));
       },
       "mask",
       {"dtype u8", "bool"},
       true},
      {"float keep mask",
       [](A& a) {
         a.options.mask = Mask::keep({a.memory.data(), DType::f32, {3, 6}});
       },
       "mask",
       {"dtype f32", "bool"},
       true},
      {"float ignore mask",
       [](A& a) {
         a.options.second_mask = Mask::ignore({a.memory.data(), DType::f32, {3, 6}});
       },
       "second_mask",
       {"dtype f32", "bool"},
       true},
      {"boolean bias",
       [](A& a) {
         a.options.mask = Mask::bias(a.mask({3, 6}));
       },
       "mask",
       {"dtype bool", "q's dtype f32"},
       true},
      {"f64 bias on f32",
       [](A& a) {
         a.options.mask = Mask::bias({a.memory.data(), DType::f64, {3, 6}});
       },
       "mask",
       {"dtype f64", "q's dtype f32"},
       true},
      {"bf16 bias on f32",
       [](A& a) {
         a.options.mask = Mask::bias({a.memory.data(), DType::bf16, {3, 6}});
       },
       "mask",
       {"dtype bf16", "q's dtype f32"},
       true},
      {"f16 bias on bf16",
       [](A& a) {
         a.q.dtype = a.k.dtype = a.v.dtype = a.o.dtype = DType::bf16;
         a.options.mask = Mask::bias({a.memory.data(), DType::f16, {3, 6}});
       },
       "mask",
       {"dtype f16", "q's dtype bf16 or f32"},
       true},
      // mask shapes
      {"mask of rank 1",
       [](A& a) { a.options.mask = Mask::keep(a.mask({6})); },
       "mask",
       {"1 dims in shape (6,)", "(T_q, T_k) = (3, 6)"}},
      {"mask of rank 0",
       [](A& a) { a.options.mask = Mask::keep(a.mask({})); },
       "mask",
       {"0 dims", "at least 2"}},
      {"mask with too few keys",
       [](A& a) {
         a.options.mask = Mask::keep(a.mask({3, 5}));
       },
       "mask",
       {"(3, 5)", "(2, 4, 3, 6)"}},
      {"mask transposed",
       [](A& a) {
         a.options.mask = Mask::keep(a.mask({6, 3}));
       },
       "mask",
       {"(6, 3)", "(2, 4, 3, 6)"}},
      {"mask (B, T_q, T_k) (MS08)",
       [](A& a) {
         a.options.mask = Mask::keep(a.mask({2, 3, 6}));
       },
       "mask",
       {"(2, 3, 6)", "(2, 4, 3, 6)", "(B, 1, T_q, T_k)", "(2, 1, 3, 6)"}},
      {"mask with the KV heads",
       [](A& a) {
         a.options.mask = Mask::keep(a.mask({2, 2, 3, 6}));
       },
       "mask",
       {"(2, 2, 3, 6)", "(2, 4, 3, 6)"}},
      {"mask of rank 5",
       [](A& a) {
         a.options.mask = Mask::keep(a.mask({1, 2, 4, 3, 6}));
       },
       "mask",
       {"(1, 2, 4, 3, 6)", "(2, 4, 3, 6)"}},
      {"mask that would expand o",
       [](A& a) {
         a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = 1;
         a.o = {a.out.data(), DType::f32, {1, 4, 3, 7}};
         a.options.mask = Mask::keep(a.mask({2, 4, 3, 6}));
       },
       "mask",
       {"(2, 4, 3, 6)", "(1, 4, 3, 6)"}},
      {"second mask with too many queries",
       [](A& a) {
         a.options.second_mask = Mask::ignore(a.mask({4, 6}));
       },
       "second_mask",
       {"(4, 6)", "(2, 4, 3, 6)"}},
      {"mask over the always visible keys too",
       [](A& a) {
         a.options.n_always_visible = 2;
         a.options.mask = Mask::keep(a.mask({3, 6}));
       },
       "mask",
       {"(3, 6)", "(2, 4, 3, 4)"}},
      {"more always visible keys than keys",
       [](A& a) { a.options.n_always_visible = 7; },
       "n_always_visible",
       {"7", "T_k = 6"}},
      // dropout
      {"NaN dropout",
       [](A& a) { a.options.dropout_p = std::numeric_limits<double>::quiet_NaN(); },
       "dropout_p",
       {"nan", "[0, 1]"}},
      {"negative dropout (WD04)",
       [](A& a) { a.options.dropout_p = -0.1; },
       "dropout_p",
       {"-0.1", "[0, 1]"}},
      {"dropout above 1 (WD04)",
       [](A& a) { a.options.dropout_p = 1.5; },
       "dropout_p",
       {"1.5", "[0, 1]"}},
      // shapes of extras
      {"row_max with one dim too many",
       [](A& a) {
         a.extras.row_max = a.extra(1, {2, 4, 3, 1});
       },
       "row_max",
       {"(2, 4, 3, 1)", "(2, 4, 3)"}},
      {"row_sum of the KV heads",
       [](A& a) {
         a.extras.row_sum = a.extra(1, {2, 2, 3});
       },
       "row_sum",
       {"(2, 2, 3)", "(2, 4, 3)"}},
      {"log_sum_exp without heads",
       [](A& a) {
         a.extras.log_sum_exp = a.extra(1, {2, 3});
       },
       "log_sum_exp",
       {"(2, 3)", "(2, 4, 3)"}},
      {"weights transposed",
       [](A& a) {
         a.extras.weights = a.extra(1, {2, 4, 6, 3});
       },
       "weights",
       {"(2, 4, 6, 3)", "(2, 4, 3, 6)"}},
      {"average_weights for each head",
       [](A& a) {
         a.extras.average_weights = a.extra(1, {2, 4, 3, 6});
       },
       "average_weights",
       {"(2, 4, 3, 6)", "(2, 3, 6)"}},
      // null data
      {"null q", [](A& a) { a.q.data = nullptr; }, "q", {"null data for shape (2, 4, 3, 5)"}},
      {"null k", [](A& a) { a.k.data = nullptr; }, "k", {"null data for shape (2, 2, 6, 5)"}},
      {"null v", [](A& a) { a.v.data = nullptr; }, "v", {"null data for shape (2, 2, 6, 7)"}},
      {"null o", [](A& a) { a.o.data = nullptr; }, "o", {"null data for shape (2, 4, 3, 7)"}},
      {"null mask",
       [](A& a) {
         a.options.mask = Mask::keep({nullptr, DType::boolean, {3, 6}});
       },
       "mask",
       {"null data for shape (3, 6)"}},
      // strides
      {"a stride too few",
       [](A& a) {
         a.k.strides = {30, 5, 1};
       },
       "k",
       {"4 dims and 3 strides", "one stride per dim"}},
      {"a mask stride too many",
       [](A& a) {
         a.options.mask = Mask::keep({a.flags.data(), DType::boolean, {3, 6}, {1, 6, 1}});
       },
       "mask",
       {"2 dims and 3 strides", "one stride per dim"}},
      {"a stride past the address space",
       [](A& a) { a.v.strides[0] = std::numeric_limits<std::ptrdiff_t>::max(); },
       "v",
       {"shape (2, 2, 6, 7)", "address space"}},
      {"the most negative stride",
       [](A& a) { a.q.strides[2] = std::numeric_limits<std::ptrdiff_t>::min(); },
       "q",
       {"shape (2, 4, 3, 5)", "address space"}},
      {"o expanded", [](A& a) { a.o.strides[0] = 0; }, "o", {"strides (0, 21, 7, 1)", "its own"}},
      {"o with rows that run into each other",
       [](A& a) { a.o.strides[2] = 6; },
       "o",
       {"strides (84, 21, 6, 1)", "its own"}},
      {"weights expanded",
       [](A& a) {
         a.extras.weights = a.extra(1, {2, 4, 3, 6});
         a.extras.weights.strides[3] = 0;
       },
       "weights",
       {"strides (72, 18, 6, 0)", "its own"}},
      {"row_max expanded",
       [](A& a) {
         a.extras.row_max = a.extra(1, {2, 4, 3});
         a.extras.row_max.strides[1] = 0;
       },
       "row_max",
       {"strides (12, 0, 1)", "its own"}},
      // shared memory
      {"o over q", [](A& a) { a.o.data = a.q.data; }, "o", {"memory shared with q", "its own"}},
      {"o over the end of v",
       [](A& a) { a.o.data = a.memory.data() + 1000 + 167; },
       "o",
       {"memory shared with v", "its own"}},
      {"o over a bias",
       [](A& a) {
         a.options.mask = Mask::bias({a.out.data(), DType::f32, {3, 6}});
       },
       "o",
       {"memory shared with mask", "its own"}},
      {"weights over o",
       [](A& a) {
         a.extras.weights = {a.out.data(), DType::f32, {2, 4, 3, 6}};
       },
       "weights",
       {"memory shared with o", "its own"}},
      {"row_sum over row_max",
       [](A& a) {
         a.extras.row_max = a.extra(1, {2, 4, 3});
         a.extras.row_sum = a.extra(1, {2, 4, 3});
       },
       "row_sum",
       {"memory shared with row_max", "its own"}},
      // sizes that overflow
      {"huge q",
       [](A& a) {
         a.q = {a.memory.data(), DType::f32, {kHuge, 4, 3, 5}};
       },
       "q",
       {"(4611686018427387904, 4, 3, 5)", "address space"}},
      {"huge T_k",
       [](A& a) {
         a.k = {a.memory.data(), DType::f32, {2, 2, kHuge, 5}};
       },
       "k",
       {"(2, 2, 4611686018427387904, 5)", "address space"}},
      {"huge expanded k",
       [](A& a) {
         a.k = {a.memory.data(), DType::f32, {kHuge, kHuge, 6, 5}, {0, 0, 5, 1}};
       },
       "k",
       {"(4611686018427387904, 4611686018427387904, 6, 5)", "address space"}},
      {"a size past ptrdiff_t beside 0",
       [](A& a) {
         a.q = {a.memory.data(), DType::f32, {std::numeric_limits<std::size_t>::max(), 0}};
       },
       "q",
       {"(18446744073709551615, 0)", "9223372036854775807"}},
      {"broadcast to a huge o",
       [](A& a) {
         a.q = {a.memory.data(), DType::f32, {std::size_t{1} << 40, 1, 1, 3, 5}, {0, 0, 0, 5, 1}};
         a.k = {a.memory.data(), DType::f32, {1, std::size_t{1} << 40, 1, 6, 5}, {0, 0, 0, 5, 1}};
         a.v = {a.memory.data(), DType::f32, {1, 1, 1, 6, 7}};
       },
       "o",
       {"(1099511627776, 1099511627776, 1, 3, 7)", "address space"}},
      {"huge weights",
       [](A& a) {
         a.extras.weights = {a.out.data(), DType::f32, {2, 4, 3, kHuge}};
       },
       "weights",
       {"(2, 4, 3, 4611686018427387904)", "(2, 4, 3, 6)"}},
  };
  return rows;
}

TEST(WrongCalls, TheRightCallWorks) {
  CallArguments a;
  a.call();
  EXPECT_EQ(a.out[0], 0.5f);
}

TEST(WrongCalls, EachNamesTheArgumentAndBothValues) {
  EXPECT_GE(wrong_calls().size(), 60u);
  for (const WrongCall& row : wrong_calls()) {
    SCOPED_TRACE(row.what);
    CallArguments a;
    const std::vector<float> out_before = a.out, memory_before = a.memory;
    try {
      row.spoil(a);
      a.call();
      ADD_FAILURE() << "no exception";
    } catch (const ArgumentError& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.argument(), row.argument) << message;
      EXPECT_EQ(dynamic_cast<const DTypeError*>(&error) != nullptr, row.wrong_dtype) << message;
      EXPECT_EQ(message.rfind(std::string(row.argument) + ": found ", 0), 0u) << message;
      EXPECT_NE(message.find(", expected "), std::string::npos) << message;
      for (const std::string& part : row.said)
        EXPECT_NE(message.find(part), std::string::npos) << message << " lacks: " << part;
    }
    EXPECT_EQ(std::memcmp(a.out.data(), out_before.data(), a.out.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(a.memory.data(), memory_before.data(), a.memory.size() * sizeof(float)),
              0);
  }
}

}  // namespace
}  // namespace headwise
