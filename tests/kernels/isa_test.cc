// Choosing an instruction set by the API and by HEADWISE_ISA.
#include "kernels/isa.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/error.h"
#include "headwise/runtime.h"
#include "support/environment.h"
#include "support/isas.h"

namespace headwise {
namespace {

TEST(Isa, ScalarIsAlwaysThereAndTheBestComesFirst) {
  const auto names = available_isas();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "scalar");
  set_isa("auto");
  EXPECT_EQ(isa(), names.front());
}

TEST(Isa, ForcingTakesEffect) {
  test::for_each_isa([] { SUCCEED(); });  // ScopedIsa checks
}

TEST(Isa, UnknownNameIsAnErrorThatListsTheChoices) {
  try {
    set_isa("avx1024");
    FAIL();
  } catch (const ArgumentError& e) {
    EXPECT_EQ(std::string(e.what()).find("isa: found \"avx1024\", expected one of auto"), 0u)
        << e.what();
  }
}

// The variable is read when the program starts, so each value needs a program of its own.
int run_with_environment(const std::string& value) {
  return test::run_again_with("HEADWISE_ISA", value, "IsaChild.*");
}

TEST(Isa, EnvironmentTakesEffect) {
  for (const std::string& name : available_isas()) EXPECT_EQ(run_with_environment(name), 0) << name;
  EXPECT_EQ(run_with_environment("pentium"), 0);
}

TEST(IsaChild, DISABLED_HasWhatTheEnvironmentAskedFor) {
  const std::string expected = std::getenv("HEADWISE_ISA");
  if (expected == "pentium") {
    EXPECT_THROW(kernels::require_valid_isa(), ArgumentError);
    EXPECT_THROW(isa(), ArgumentError);
    const Tensor x = Tensor::zeros(DType::f32, {1, 2, 2});
    EXPECT_THROW(scaled_dot_product_attention(x, x, x), ArgumentError);
    set_isa("auto");  // an explicit choice wins
    EXPECT_NO_THROW(kernels::require_valid_isa());
    EXPECT_NO_THROW(scaled_dot_product_attention(x, x, x));
  } else {
    EXPECT_EQ(isa(), expected);
  }
}

}  // namespace
}  // namespace headwise
