// Choosing an attention kernel by the API and by HEADWISE_KERNEL.
#include "attention/kernel_choice.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/error.h"
#include "headwise/plan.h"
#include "support/environment.h"
#include "support/kernels.h"

namespace headwise {
namespace {

TEST(KernelChoice, FlashIsAlwaysThere) {
  const auto names = available_kernels();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "flash");
}

TEST(KernelChoice, ForcingTakesEffect) {
  const ConstTensorView q(nullptr, DType::f32, {1, 2, 5, 8});
  const ConstTensorView k(nullptr, DType::f32, {1, 2, 700, 8});
  const std::string before = kernel();
  for (const std::string& name : available_kernels()) {
    const test::ScopedKernel forced(name);
    EXPECT_EQ(kernel(), name);
    const AttentionPlan plan = explain_attention(q, k, k);
    if (name == "flash") {
      EXPECT_EQ(plan.kernel, name);
    }
    EXPECT_NE(plan.reason, "");
  }
  EXPECT_EQ(kernel(), before);
}

TEST(KernelChoice, FewQueriesAreDecodedWhateverTheirKeysAndBatch) {
  const test::ScopedKernel automatic("auto");
  const auto chosen = [](std::size_t B, std::size_t T_q, std::size_t T_k, std::size_t d) {
    const ConstTensorView q(nullptr, DType::f32, {B, 4, T_q, d});
    const ConstTensorView k(nullptr, DType::f32, {B, 2, T_k, d});
    return explain_attention(q, k, k).kernel;
  };
  for (const std::size_t B : {1u, 50u})
    for (const std::size_t T_k : {1u, 16u, 5000u}) {
      EXPECT_EQ(chosen(B, 1, T_k, 1), "decode");
      EXPECT_EQ(chosen(B, 2, T_k, 8), "flash");
      EXPECT_EQ(chosen(B, 8, T_k, 64), "decode");
      EXPECT_EQ(chosen(B, 9, T_k, 64), "flash");
      EXPECT_EQ(chosen(B, 13, T_k, 256), "flash");
    }
}

TEST(KernelChoice, UnknownNameIsAnErrorThatListsTheChoices) {
  try {
    set_kernel("thunder");
    FAIL();
  } catch (const ArgumentError& e) {
    EXPECT_EQ(std::string(e.what()).find("kernel: found \"thunder\", expected one of auto, flash"),
              0u)
        << e.what();
  }
}

TEST(KernelChoice, EnvironmentTakesEffect) {
  for (const std::string& name : available_kernels())
    EXPECT_EQ(test::run_again_with("HEADWISE_KERNEL", name, "KernelChoiceChild.*"), 0) << name;
  EXPECT_EQ(test::run_again_with("HEADWISE_KERNEL", "thunder", "KernelChoiceChild.*"), 0);
}

TEST(KernelChoiceChild, DISABLED_UsesTheEnvironment) {
  const std::string expected = std::getenv("HEADWISE_KERNEL");
  const float one[1] = {1};
  float out[1] = {7};
  const ConstTensorView x(one, DType::f32, {1, 1});
  const auto call = [&] {
    scaled_dot_product_attention(x, x, x, {}, TensorView(out, DType::f32, {1, 1}));
  };
  if (expected != "thunder") {
    EXPECT_EQ(kernel(), expected);
    call();
    EXPECT_EQ(out[0], 1);
    return;
  }
  EXPECT_THROW(kernel(), ArgumentError);
  EXPECT_THROW(call(), ArgumentError);
  EXPECT_EQ(out[0], 7);
  set_kernel("auto");  // takes the place of the environment's
  call();
  EXPECT_EQ(out[0], 1);
}

}  // namespace
}  // namespace headwise
