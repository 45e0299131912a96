// Publicly reported faults of attention implementations as tests, under the ids of docs/cases.md:
// shapes, memory layouts, grouped heads and repeatability. Masks and numbers: cases_test.cc.
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/error.h"
#include "headwise/runtime.h"
#include "support/attention_reference.h"
#include "support/epsilon.h"
#include "support/isas.h"
#include "support/l4.h"

namespace headwise {
namespace {

using test::for_each_isa;
using test::L4;
using test::Memory;
using test::StridedTensor;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

StridedTensor normal(DType dtype, const Shape& shape, unsigned seed,
                     Memory memory = Memory::contiguous) {
  std::mt19937 random(seed);
  return StridedTensor(dtype, shape, memory).fill_normal(random);
}

void expect_definition(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const AttentionOptions& options = {}) {
  test::expect_output(test::reference_call(q, k, v, options),
                      scaled_dot_product_attention(q, k, v, options));
}

// The message of the error that the call has to throw.
std::string error_of(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options = {}) {
  try {
    scaled_dot_product_attention(q, k, v, options);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "no exception";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks: " << part;
}

TEST(Cases, SH01_KeysAndValuesOfDifferentLengths) {
  const StridedTensor q(DType::f32, {1, 1, 3, 8}), k(DType::f32, {1, 1, 4, 8});
  expect_parts(error_of(q, k, StridedTensor(DType::f32, {1, 1, 5, 8})), {"v: ", "5", "4"});
  expect_parts(error_of(q, k, StridedTensor(DType::f32, {1, 1, 3, 8})), {"v: ", "3", "4"});
}

TEST(Cases, SH02_EmptyDims) {
  struct Sizes {
    std::size_t B, n_heads, T_q, T_k, d_head, d_v;
  };
  for_each_isa([] {
    for (const DType dtype : kDTypes) {
      for (const Sizes& s :
           {Sizes{0, 2, 3, 4, 5, 6}, Sizes{2, 0, 3, 4, 5, 6}, Sizes{2, 2, 0, 4, 5, 6},
            Sizes{2, 2, 3, 4, 5, 0}, Sizes{2, 2, 3, 0, 5, 6}, Sizes{0, 0, 0, 0, 0, 0}}) {
        const StridedTensor q = normal(dtype, {s.B, s.n_heads, s.T_q, s.d_head}, 1);
        const StridedTensor k = normal(dtype, {s.B, s.n_heads, s.T_k, s.d_head}, 2);
        const StridedTensor v = normal(dtype, {s.B, s.n_heads, s.T_k, s.d_v}, 3);
        const Tensor o = scaled_dot_product_attention(q, k, v);
        EXPECT_EQ(o.shape(), (Shape{s.B, s.n_heads, s.T_q, s.d_v}));
        for (const double x : test::values_of(o)) EXPECT_EQ(x, 0.0);
      }
      const StridedTensor q(dtype, {1, 1, 2, 0}), k(dtype, {1, 1, 4, 0});
      test::expect_values(scaled_dot_product_attention(q, k, L4(1, dtype).v), {25, 25},
                          test::tolerance_of(dtype));
    }
  });
}

TEST(Cases, SH09_HeadCountsThatDoNotDivide) {
  const auto error = [](std::size_t n_heads, std::size_t n_kv_heads, bool enable_gqa = true) {
    const StridedTensor q(DType::f32, {1, n_heads, 2, 4}), k(DType::f32, {1, n_kv_heads, 2, 4});
    AttentionOptions options;
    options.enable_gqa = enable_gqa;
    return error_of(q, k, k, options);
  };
  expect_parts(error(3, 2), {"n_kv_heads = 2", "n_heads = 3"});
  expect_parts(error(33, 2), {"n_kv_heads = 2", "n_heads = 33"});
  expect_parts(error(2, 6), {"n_kv_heads = 6", "n_heads = 2"});
  expect_parts(error(4, 2, false), {"n_kv_heads = 2", "n_heads = 4", "enable_gqa"});
  EXPECT_EQ(error(4, 2), "no exception");
  EXPECT_EQ(error(4, 1, false), "no exception");
}

TEST(Cases, SH11_MasksCountQueryHeads) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    const StridedTensor q = normal(dtype, {3, 8, 8, 64}, 1), k = normal(dtype, {3, 2, 8, 64}, 2),
                        v = normal(dtype, {3, 2, 8, 64}, 3);
    StridedTensor k_repeated(dtype, {3, 8, 8, 64}), v_repeated(dtype, {3, 8, 8, 64});
    k_repeated.fill([&](const Shape& at) { return k({at[0], at[1] / 4, at[2], at[3]}); });
    v_repeated.fill([&](const Shape& at) { return v({at[0], at[1] / 4, at[2], at[3]}); });
    for (const std::size_t mask_heads : {1, 8}) {
      std::mt19937 random(4);
      StridedTensor keep(DType::boolean, {3, mask_heads, 8, 8});
      keep.fill_flags(random, 0.5);
      AttentionOptions options;
      options.mask = Mask::keep(keep);
      for_each_isa([&] {
        EXPECT_EQ(
            test::values_of(scaled_dot_product_attention(q, k, v, options)),
            test::values_of(scaled_dot_product_attention(q, k_repeated, v_repeated, options)));
      });
      expect_definition(q, k, v, options);
    }
  }
}

TEST(Cases, SH12_KeyAndValueHeadsDiffer) {
  expect_parts(error_of(normal(DType::f32, {1, 6, 3, 4}, 1), normal(DType::f32, {1, 2, 5, 4}, 2),
                        normal(DType::f32, {1, 3, 5, 4}, 3)),
               {"v: ", "n_kv_heads = 3", "n_kv_heads = 2"});
}

// Every pair of lengths around the sizes of blocks; NaN lies right before and behind K and V.
TEST(Cases, SH14_LengthTails) {
  constexpr std::size_t kLengths[] = {1,  2,  7,  8,  9,  15, 16,  17,  31,  32,  33,
                                      38, 39, 63, 64, 65, 70, 127, 128, 129, 255, 257};
  constexpr std::size_t kLongest = 257, d = 4;
  const StridedTensor all_q = normal(DType::f32, {kLongest, d}, 1),
                      all_k = normal(DType::f32, {kLongest, d}, 2),
                      all_v = normal(DType::f32, {kLongest, d}, 3);
  std::mt19937 random(4);
  StridedTensor all_keep(DType::boolean, {kLongest, kLongest});
  all_keep.fill_flags(random, 0.7);
  const auto first = [](const StridedTensor& from, std::size_t n) {
    StridedTensor part(DType::f32, {n, d});
    return part.fill([&](const Shape& at) { return from(at); });
  };
  for (const std::size_t T_q : kLengths)
    for (const std::size_t T_k : kLengths)
      for (const bool masked : {false, true}) {
        const StridedTensor q = first(all_q, T_q), k = first(all_k, T_k), v = first(all_v, T_k);
        ConstTensorView keep = all_keep;
        keep.shape = {T_q, T_k};
        AttentionOptions options;
        if (masked) options.mask = Mask::keep(keep);
        const auto reference = test::reference_call(q, k, v, options);
        for_each_isa([&] {
          SCOPED_TRACE(std::to_string(T_q) + " queries, " + std::to_string(T_k) + " keys");
          test::expect_output(reference, scaled_dot_product_attention(q, k, v, options));
        });
        if (HasFailure()) return;
      }
}

TEST(Cases, SH15_LastDimStrided) {
  for (const Memory memory : {Memory::columns, Memory::every_second, Memory::backwards}) {
    const Shape shape{1, 2, 19, 24};
    const StridedTensor q = normal(DType::f32, shape, 1, memory),
                        k = normal(DType::f32, shape, 2, memory),
                        v = normal(DType::f32, shape, 3, memory);
    std::mt19937 random(4);
    StridedTensor keep(DType::boolean, {2, 19, 19}, memory);
    keep.fill_flags(random, 0.6);
    AttentionOptions options;
    options.mask = Mask::keep(keep);
    for_each_isa([&] {
      EXPECT_EQ(test::values_of(scaled_dot_product_attention(q, k, v, options)),
                test::values_of(scaled_dot_product_attention(Tensor::copy_of(q), Tensor::copy_of(k),
                                                             Tensor::copy_of(v), options)));
    });
    expect_definition(q, k, v, options);
  }
}

TEST(Cases, SH16_TransposedAndPackedViews) {
  const Shape shape{1, 16, 62, 128};
  const StridedTensor q = normal(DType::f32, shape, 1), k = normal(DType::f32, shape, 2),
                      v = normal(DType::f32, shape, 3, Memory::heads_inside);
  // q, k and v in one (B, T, 3, n_heads, d) tensor
  StridedTensor packed(DType::f32, {1, 62, 3, 16, 128});
  packed.fill([&](const Shape& at) {
    const StridedTensor& from = at[2] == 0 ? q : at[2] == 1 ? k : v;
    return from({at[0], at[3], at[1], at[4]});
  });
  const auto part = [&](std::size_t n) {
    return ConstTensorView(static_cast<const float*>(packed.view().data) + n * 16 * 128, DType::f32,
                           shape, {62 * 3 * 16 * 128, 128, 3 * 16 * 128, 1});
  };
  for_each_isa([&] {
    const Tensor contiguous = scaled_dot_product_attention(q, k, Tensor::copy_of(v));
    EXPECT_EQ(test::values_of(contiguous), test::values_of(scaled_dot_product_attention(q, k, v)));
    EXPECT_EQ(test::values_of(contiguous),
              test::values_of(scaled_dot_product_attention(part(0), part(1), part(2))));
  });
}

TEST(Cases, SH19_ManyKeys) {
  constexpr std::size_t T_k = 70000;
  const StridedTensor q = test::tensor_of(DType::f32, {2, 1}, {0, 0});
  StridedTensor k(DType::f32, {T_k, 1}, Strides{0, 1}), v(DType::f32, {T_k, 1});
  k.set({0, 0}, 0.0);
  v.fill([](const Shape& at) { return static_cast<double>(at[0]); });
  for_each_isa([&] {
    test::expect_values(scaled_dot_product_attention(q, k, v), {34999.5, 34999.5}, 1e-6);
  });
}

TEST(Cases, SH22_KeyLengthAlone) {
  const StridedTensor two = test::tensor_of(DType::boolean, {1, 4}, {1, 1, 0, 0});
  AttentionOptions options;
  options.mask = Mask::keep(two);
  L4(1).expect(options, {50.0 / 3});
}

// Sample 3 of a batch and row i of a sequence have the bits that they have alone, on any number of
// threads.
TEST(Cases, DT01_BitsDoNotDependOnNeighbours) {
  const int threads_before = get_num_threads();
  for_each_isa([&] {
    for (const DType dtype : kDTypes)
      for (const std::size_t T : {1u, 17u, 64u, 130u, 300u}) {
        const StridedTensor q = normal(dtype, {8, 4, T, 32}, 1),
                            k = normal(dtype, {8, 4, T, 32}, 2),
                            v = normal(dtype, {8, 4, T, 32}, 3);
        set_num_threads(1);
        const std::vector<double> whole = test::values_of(scaled_dot_product_attention(q, k, v));
        set_num_threads(3);
        EXPECT_EQ(whole, test::values_of(scaled_dot_product_attention(q, k, v)));

        const auto sample = [](const ConstTensorView& x, std::size_t b, std::size_t t0,
                               std::size_t n) {
          ConstTensorView part = x;
          const auto offset = static_cast<std::ptrdiff_t>(b) * x.strides[0] +
                              static_cast<std::ptrdiff_t>(t0) * x.strides[2];
          part.data = static_cast<const std::byte*>(x.data) +
                      offset * static_cast<std::ptrdiff_t>(size_of(x.dtype));
          part.shape[0] = 1;
          part.shape[2] = n;
          return part;
        };
        const std::size_t n = 4 * T * 32;
        const bool half = dtype == DType::bf16 || dtype == DType::f16;
        EXPECT_EQ(std::vector<double>(whole.begin() + 3 * static_cast<std::ptrdiff_t>(n),
                                      whole.begin() + 4 * static_cast<std::ptrdiff_t>(n)),
                  test::values_of(scaled_dot_product_attention(
                      sample(q, 3, 0, T), sample(k, 3, 0, T), sample(v, 3, 0, T))));
        for (const std::size_t t : {std::size_t{0}, T / 2, T - 1}) {
          const Tensor row = scaled_dot_product_attention(sample(q, 3, t, 1), sample(k, 3, 0, T),
                                                          sample(v, 3, 0, T));
          for (std::size_t h = 0; h < 4; ++h)
            for (std::size_t i = 0; i < 32; ++i)
              // Another kernel's bits, perhaps; tests of bits compare each with itself.
              ASSERT_NEAR(test::get(row, {0, h, 0, i}), whole[((3 * 4 + h) * T + t) * 32 + i],
                          half ? test::epsilon(dtype) * 4 : 2e-6)
                  << "row " << t << " of " << T;
        }
      }
  });
  set_num_threads(threads_before);
}

TEST(Cases, DT03_CallersAtTheSameTime) {
  const StridedTensor x = normal(DType::f32, {2, 4, 33, 16}, 1);
  const std::vector<double> expected = test::values_of(scaled_dot_product_attention(x, x, x));
  std::vector<std::thread> callers;
  std::vector<int> wrong(8, 0);
  for (std::size_t n = 0; n < wrong.size(); ++n)
    callers.emplace_back([&, n] {
      for (int call = 0; call < 20; ++call)
        wrong[n] += test::values_of(scaled_dot_product_attention(x, x, x)) != expected ? 1 : 0;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

}  // namespace
}  // namespace headwise
