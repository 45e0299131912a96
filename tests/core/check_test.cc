// The wording of argument errors, and what check_view lets pass.
#include "core/check.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace headwise::core {
namespace {

template <typename F>
std::string message(F&& f) {
  try {
    f();
  } catch (const ArgumentError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Check, NamesTheArgumentWhatWasFoundAndWhatWasExpected) {
  EXPECT_EQ(message([] {
              check_shape("key", {2, 3}, {2, 4}, "as many rows as value");
            }),
            "key: found shape (2, 3), expected (2, 4) (as many rows as value)");
  EXPECT_EQ(message([] { check_dtype("v", DType::f16, DType::f32); }),
            "v: found dtype f16, expected f32");
  EXPECT_EQ(message([] { check_shape("key", {2}, {2}); }), "no error");
}

TEST(Check, ProbabilityRefusesNaN) {
  EXPECT_THROW(check_probability("p", std::numeric_limits<double>::quiet_NaN()), ArgumentError);
  EXPECT_THROW(check_probability("p", -0.1), ArgumentError);
  EXPECT_THROW(check_probability("p", 1.5), ArgumentError);
  EXPECT_NO_THROW(check_probability("p", 0.0));
  EXPECT_NO_THROW(check_probability("p", 1.0));
}

TEST(Check, ViewsHaveToFitTheAddressSpace) {
  const float x = 0;
  const std::size_t huge = std::size_t{1} << 40;
  EXPECT_NO_THROW(check_view("x", {&x, {1, 1}}));
  EXPECT_NO_THROW(check_view("x", {nullptr, DType::f32, {0, 5}}));
  EXPECT_NO_THROW(check_view("x", {&x, DType::f32, {huge}, {0}}));  // broadcast
  EXPECT_EQ(message([&] {
              check_view("x", {nullptr, DType::f32, {2, 3}});
            }),
            "x: found null data for shape (2, 3), expected a pointer to its elements");
  EXPECT_THROW(check_view("x", {&x, DType::f32, {huge, huge}, {0, 0}}), ArgumentError);
  EXPECT_THROW(check_view("x", {&x, DType::f32, {huge, 2}, {std::ptrdiff_t{1} << 40, 1}}),
               ArgumentError);
  EXPECT_THROW(check_view("x", {&x, DType::f32, {3}, {std::numeric_limits<std::ptrdiff_t>::min()}}),
               ArgumentError);
  EXPECT_THROW(check_view("x", {&x, DType::f32, {3, 2}, {1}}), ArgumentError);
}

TEST(Check, DataHasToBeAligned) {
  alignas(8) const char memory[16] = {};
  EXPECT_EQ(message([&] {
              check_view("x", {memory + 5, DType::f32, {2}});
            }),
            "x: found data 1 past a multiple of 4 bytes, expected data aligned to its elements, "
            "f32");
  EXPECT_THROW(check_view("x", {memory + 4, DType::f64, {1}}), ArgumentError);
  EXPECT_THROW(check_view("x", {memory + 1, DType::bf16, {1}}), ArgumentError);
  EXPECT_NO_THROW(check_view("x", {memory + 2, DType::f16, {1}}));
  EXPECT_NO_THROW(check_view("x", {memory + 1, DType::boolean, {1}}));
  EXPECT_NO_THROW(check_view("x", {memory + 1, DType::f32, {0}}));
}

}  // namespace
}  // namespace headwise::core
