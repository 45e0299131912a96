// What optimizers share: checks, state by name, files.
#include "optim/optimizer.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "optim/steps.h"

namespace headwise {
namespace {

using test::bytes_of;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Two parameters, and a step of both.
struct Pair {
  Tensor a = test::gaussian(DType::f32, {3, 5}, 1), b = test::gaussian(DType::f64, {7}, 2);
  void step(Optimizer& optimizer, unsigned seed) {
    const Tensor ga = test::gaussian(DType::f32, {3, 5}, seed);
    const Tensor gb = test::gaussian(DType::f64, {7}, seed + 1);
    const TrainedParameter parameters[] = {{"layer.a", a.view(), ga}, {"b", b.view(), gb}};
    optimizer.step(parameters);
  }
};

TEST(Optimizer, GoesOnWithTheSameBitsFromAFile) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "headwise_optimizer_test.safetensors").string();
  for (const bool adam : {false, true}) {
    const auto make = [adam] {
      return adam ? Optimizer(AdamW({.amsgrad = true}))
                  : Optimizer(SGD({.learning_rate = 0.1, .momentum = 0.9}));
    };
    Pair one, two;
    Optimizer whole = make(), first = make(), second = make();
    for (unsigned t = 0; t < 6; ++t) one.step(whole, 10 * t);
    for (unsigned t = 0; t < 3; ++t) two.step(first, 10 * t);
    save_safetensors(path, first.state());
    {
      const TensorFile file = TensorFile::open(path);
      std::vector<NamedView> state;
      for (const TensorInfo& info : file.tensors())
        state.push_back({info.name, file.view(info.name)});
      second.load_state(state);
    }
    for (unsigned t = 3; t < 6; ++t) two.step(second, 10 * t);
    EXPECT_EQ(bytes_of(one.a), bytes_of(two.a));
    EXPECT_EQ(bytes_of(one.b), bytes_of(two.b));
  }
  std::filesystem::remove(path);
}

TEST(Optimizer, BitsDoNotDependOnThreads) {
  const auto run = [](int n) {
    const test::ScopedThreads threads(n);
    Tensor value = test::gaussian(DType::f32, {100001}, 1);
    AdamW optimizer({});
    for (unsigned t = 0; t < 3; ++t) {
      const Tensor gradient = test::gaussian(DType::f32, {100001}, t + 2);
      const TrainedParameter p{"w", value.view(), gradient};
      optimizer.step({&p, 1});
    }
    return bytes_of(value);
  };
  const std::string one = run(1);
  EXPECT_TRUE(run(2) == one);
  EXPECT_TRUE(run(5) == one);
}

TEST(Optimizer, FrozenParametersStayAsTheyAre) {
  Tensor a = test::gaussian(DType::f32, {5}, 1), b = test::gaussian(DType::f32, {5}, 2);
  const std::string before = bytes_of(b);
  Tensor gradient = test::gaussian(DType::f32, {5}, 3);
  const NamedTensorView values[] = {{"a", a.view()}, {"b", b.view()}};
  const NamedTensorView gradients[] = {{"a", gradient.view()}};
  AdamW optimizer({});
  optimizer.step(trained(values, gradients));
  EXPECT_EQ(bytes_of(b), before);
  EXPECT_EQ(optimizer.state().size(), 3u);
  EXPECT_EQ(optimizer.state()[0].name, "a.step");
}

TEST(Optimizer, LearningRateChangesBetweenSteps) {
  SGD optimizer({.learning_rate = 1.0});
  Tensor value = Tensor::zeros(DType::f32, {1}), gradient = Tensor::zeros(DType::f32, {1});
  gradient.data<float>()[0] = 1;
  const TrainedParameter p{"w", value.view(), gradient};
  optimizer.step({&p, 1});
  optimizer.set_learning_rate(0.5);
  EXPECT_EQ(optimizer.learning_rate(), 0.5);
  optimizer.step({&p, 1});
  EXPECT_EQ(value.values<float>()[0], -1.5f);
  EXPECT_THROW(optimizer.set_learning_rate(-1), ArgumentError);
}

TEST(Optimizer, WrongStepsSayWhatIsWrongAndWriteNothing) {
  Tensor value = test::gaussian(DType::f32, {4, 3}, 1),
         gradient = test::gaussian(DType::f32, {4, 3}, 2);
  Tensor narrow = test::gaussian(DType::f32, {3}, 3), wide = test::gaussian(DType::f64, {4, 3}, 4);
  Tensor half = test::gaussian(DType::bf16, {4, 3}, 4), flags(DType::boolean, {4, 3});
  const std::string before = bytes_of(value);
  AdamW optimizer({});
  const auto message = [&](const TensorView& v, const ConstTensorView& g) {
    const TrainedParameter parameters[] = {{"first", value.view(), gradient}, {"w", v, g}};
    return message_of([&] { optimizer.step(parameters); });
  };
  EXPECT_EQ(message(value.view(), narrow), "gradient of w: found shape (3,), expected (4, 3)");
  EXPECT_EQ(message(value.view(), wide), "gradient of w: found dtype f64, expected f32");
  EXPECT_EQ(message(half.view(), wide), "gradient of w: found dtype f64, expected bf16 or f32");
  EXPECT_EQ(message(flags.view(), gradient), "w: found dtype bool, expected f32, f64, bf16 or f16");
  const TensorView turned(value.view().data, DType::f32, {3, 4}, {1, 3});
  EXPECT_EQ(message(turned, Tensor::zeros(DType::f32, {3, 4})),
            "w: found strides of shape (3, 4) with gaps, expected a contiguous tensor");
  const TrainedParameter twice[] = {{"w", value.view(), gradient}, {"w", value.view(), gradient}};
  EXPECT_EQ(message_of([&] { optimizer.step(twice); }),
            "parameters: found \"w\" twice, expected each name once");
  EXPECT_EQ(bytes_of(value), before);
  EXPECT_TRUE(optimizer.state().empty());

  const TrainedParameter good{"w", value.view(), gradient};
  optimizer.step({&good, 1});
  EXPECT_NE(message(narrow.view(), narrow).find("w: found shape (3,), expected (4, 3)"), std::string::npos)
      << message(narrow.view(), narrow);
}

TEST(Optimizer, WrongStateSaysWhatIsWrongAndChangesNothing) {
  Pair pair;
  AdamW optimizer({});
  pair.step(optimizer, 1);
  const std::size_t n = optimizer.state().size();
  const Tensor x = test::gaussian(DType::f32, {2}, 1), step = Tensor::zeros(DType::f64, {});
  const Tensor other = test::gaussian(DType::f32, {3}, 1),
               half = test::gaussian(DType::bf16, {2}, 1);
  const auto message = [&](const std::vector<NamedView>& state) {
    return message_of([&] { optimizer.load_state(state); });
  };
  EXPECT_EQ(message({{"w.exp", x}}),
            "state: found \"w.exp\", expected names that end in a dot and one of step, exp_avg, "
            "exp_avg_sq");
  EXPECT_EQ(message({{"step", step}}),
            "state: found \"step\", expected names that end in a dot and one of step, exp_avg, "
            "exp_avg_sq");
  EXPECT_EQ(message({{"w.step", step}, {"w.exp_avg", x}}),
            "state: found \"w\" without all of them, expected each of step, exp_avg, exp_avg_sq");
  EXPECT_EQ(message({{"w.step", step}, {"w.exp_avg", x}, {"w.exp_avg", x}}),
            "state: found \"w.exp_avg\" twice, expected each name once");
  EXPECT_NE(message({{"w.step", step}, {"w.exp_avg", x}, {"w.exp_avg_sq", other}})
                .find("w.exp_avg_sq: found"),
            std::string::npos);
  EXPECT_NE(message({{"w.step", x}, {"w.exp_avg", x}, {"w.exp_avg_sq", x}}).find("w.step: found"),
            std::string::npos);
  EXPECT_EQ(message({{"w.exp_avg", half}}), "w.exp_avg: found dtype bf16, expected f32 or f64");
  EXPECT_EQ(optimizer.state().size(), n);
}

}  // namespace
}  // namespace headwise
