// run against direct calls of the library, and command lines that make no sense.
#include "cli/run.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/tensor_args.h"
#include "core/convert.h"
#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/io.h"
#include "headwise/multihead_attention.h"
#include "headwise/random.h"
#include "nlohmann/json.hpp"
#include "support/cli.h"

namespace headwise::cli {
namespace {

using nlohmann::json;
using test::CliResult;
using test::run_cli;

class Run : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "runXXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string save(const std::string& name, const Tensor& tensor) const {
    save_npy(path(name), tensor);
    return path(name);
  }
  Tensor draw(Shape shape, DType dtype = DType::f32) { return randn(shape, generator_, dtype); }

  std::filesystem::path folder_;
  Generator generator_{5};
};

void expect_same(const ConstTensorView& found, const Tensor& expected) {
  ASSERT_EQ(found.dtype, expected.dtype());
  ASSERT_EQ(found.shape, expected.shape());
  const Tensor copy = Tensor::copy_of(found);
  EXPECT_EQ(std::memcmp(copy.view().data, expected.view().data,
                        expected.size() * size_of(expected.dtype())),
            0);
}

Tensor bool_tensor(Shape shape, std::uint32_t seed) {
  Generator generator(seed);
  Tensor mask(DType::boolean, shape);
  for (std::size_t i = 0; i < mask.size(); ++i)
    mask.data<bool>()[i] = generator.next_u32() % 3 == 0;
  return mask;
}

MultiheadAttentionOptions small_module() {
  MultiheadAttentionOptions options;
  options.embed_dim = 12;
  options.num_heads = 3;
  return options;
}

TEST_F(Run, ConstructsTorchsModule) {
  const Tensor x = draw({2, 5, 12});
  auto options = small_module();
  options.batch_first = true;
  Generator generator(7);
  const MultiheadAttention module(options, generator);
  const ForwardResult expected = module.forward(x, x, x);

  const auto result = run_cli({"run", "--embed-dim", "12", "--num-heads", "3", "--batch-first",
                               "--seed", "7", "--query", save("x.npy", x), "--out", path("y.npz"),
                               "--save-module", path("module.safetensors"), "--json"});
  ASSERT_EQ(result.code, kSuccess) << result.err;
  const TensorFile file = TensorFile::open(path("y.npz"));
  expect_same(file.view("output"), expected.output);
  expect_same(file.view("weights"), *expected.weights);
  const json summary = json::parse(result.out);
  EXPECT_EQ(summary["output"]["shape"], (std::vector<int>{2, 5, 12}));
  EXPECT_EQ(summary["weights"]["shape"], (std::vector<int>{2, 5, 5}));

  // The tables that were written give the same again.
  const auto again = run_cli({"run", "--weights", path("module.safetensors"), "--num-heads", "3",
                              "--batch-first", "--query", path("x.npy"), "--out", path("again.npy"),
                              "--weights-out", path("w.safetensors"), "--per-head"});
  ASSERT_EQ(again.code, kSuccess) << again.err;
  expect_same(TensorFile::open(path("again.npy")).view(""), expected.output);
  EXPECT_EQ(TensorFile::open(path("w.safetensors")).view("weights").shape, (Shape{2, 3, 5, 5}));
}

TEST_F(Run, PassesEveryOptionOfTheModule) {
  auto options = small_module();
  options.add_bias_kv = options.add_zero_attn = true;
  options.kdim = 5;
  options.vdim = 7;
  options.dropout = 0.25;
  options.bias = false;
  options.dtype = DType::f64;
  Generator generator(9);
  const MultiheadAttention module(options, generator);
  const Tensor q = draw({4, 2, 12}, DType::f64), k = draw({6, 2, 5}, DType::f64),
               v = draw({6, 2, 7}, DType::f64);
  const Tensor padding = bool_tensor({2, 6}, 1), bias = draw({4, 6}, DType::f64);
  ForwardOptions forward;
  forward.key_padding_mask = Mask::ignore(padding);
  forward.attn_mask = Mask::bias(bias);
  forward.average_attn_weights = false;
  forward.dropout_seed = 9;
  const ForwardResult expected = module.forward(q, k, v, forward);

  const std::vector<NamedView> inputs = {{"q", q.view()},
                                         {"k", k.view()},
                                         {"v", v.view()},
                                         {"padding", padding.view()},
                                         {"bias", bias.view()}};
  save_npz(path("in.npz"), inputs);
  const std::string in = path("in.npz") + ":";
  const auto result = run_cli({"run",
                               "--embed-dim",
                               "12",
                               "--num-heads",
                               "3",
                               "--kdim",
                               "5",
                               "--vdim",
                               "7",
                               "--add-bias-kv",
                               "--train",
                               "--add-zero-attn",
                               "--no-bias",
                               "--dropout",
                               "0.25",
                               "--seed",
                               "9",
                               "--query",
                               in + "q",
                               "--key",
                               in + "k",
                               "--value",
                               in + "v",
                               "--attn-mask",
                               in + "bias",
                               "--threads",
                               "1",
                               "--per-head",
                               "--out",
                               path("y.safetensors"),
                               "--key-padding-mask",
                               in + "padding"});
  ASSERT_EQ(result.code, kSuccess) << result.err;
  const TensorFile file = TensorFile::open(path("y.safetensors"));
  expect_same(file.view("output"), expected.output);
  expect_same(file.view("weights"), *expected.weights);
}

TEST_F(Run, TrueInAMaskMeansWhatTorchMeansUnlessTold) {
  const Tensor x = draw({5, 12}), mask = bool_tensor({5, 5}, 3);
  Generator generator(0);
  const MultiheadAttention module(small_module(), generator);
  const std::string x_file = save("x.npy", x), mask_file = save("mask.npy", mask);
  for (const bool keep : {false, true}) {
    ForwardOptions forward;
    forward.attn_mask = keep ? Mask::keep(mask) : Mask::ignore(mask);
    std::vector<std::string> args{"run",     "--embed-dim", "12",         "--num-heads",
                                  "3",       "--query",     x_file,       "--attn-mask",
                                  mask_file, "--out",       path("y.npy")};
    if (keep) args.push_back("--keep");
    ASSERT_EQ(run_cli(args).code, kSuccess);
    expect_same(TensorFile::open(path("y.npy")).view(""), module.forward(x, x, x, forward).output);
  }
  const Tensor q = draw({1, 2, 5, 4});
  for (const bool ignore : {false, true}) {
    AttentionOptions options;
    options.mask = ignore ? Mask::ignore(mask) : Mask::keep(mask);
    std::vector<std::string> args{"run",         "--sdpa",  "--query", save("q.npy", q),
                                  "--attn-mask", mask_file, "--out",   path("o.npy")};
    if (ignore) args.push_back("--ignore");
    ASSERT_EQ(run_cli(args).code, kSuccess);
    expect_same(TensorFile::open(path("o.npy")).view(""),
                scaled_dot_product_attention(q, q, q, options));
  }
}

TEST_F(Run, PassesEveryOptionOfSdpa) {
  const Tensor q = draw({2, 4, 5, 8}), k = draw({2, 2, 7, 8}), v = draw({2, 2, 7, 3});
  AttentionOptions options;
  options.scale = -0.5;
  options.causal = CausalAlign::bottom_right;
  options.dropout_p = 0.25;
  options.dropout_seed = 3;
  Tensor output(DType::f32, {2, 4, 5, 3}), weights(DType::f32, {2, 4, 5, 7});
  AttentionExtras extras;
  extras.weights = weights.view();
  scaled_dot_product_attention(q, k, v, options, output.view(), extras);
  std::vector<std::string> args{"run",       "--sdpa",         "--query",  save("q.npy", q),
                                "--key",     save("k.npy", k), "--value",  save("v.npy", v),
                                "--scale",   "-0.5",           "--causal", "--bottom-right",
                                "--dropout", "0.25",           "--seed",   "3",
                                "--gqa",     "--need-weights", "--out",    path("o.npz")};
  const auto result = run_cli(args);
  ASSERT_EQ(result.code, kSuccess) << result.err;
  expect_same(TensorFile::open(path("o.npz")).view("output"), output);
  expect_same(TensorFile::open(path("o.npz")).view("weights"), weights);

  args.push_back("--average");
  ASSERT_EQ(run_cli(args).code, kSuccess);
  EXPECT_EQ(TensorFile::open(path("o.npz")).view("weights").shape, (Shape{2, 5, 7}));
}

TEST_F(Run, ConvertsToTheDTypeAskedFor) {
  const Tensor x = draw({3, 4, 8});
  for (const auto& [name, dtype] : {std::pair("f64", DType::f64),
                                    {"f16", DType::f16},
                                    {"bf16", DType::bf16},
                                    {"f32", DType::f32}}) {
    const Tensor narrow = core::converted(x, dtype);
    ASSERT_EQ(run_cli({"run", "--sdpa", "--query", save("x.npy", x), "--dtype", name, "--out",
                       path("o.safetensors")})
                  .code,
              kSuccess);
    expect_same(TensorFile::open(path("o.safetensors")).view("output"),
                scaled_dot_product_attention(narrow, narrow, narrow));
  }
}

// The lowest double added to every score means nothing; -inf would hide the keys.
TEST_F(Run, FiniteMasksStayFinite) {
  const Tensor x = draw({3, 4});
  Tensor mask(DType::f64, {3, 3});
  std::fill_n(mask.data<double>(), 9, std::numeric_limits<double>::lowest());
  const auto result = run_cli({"run", "--sdpa", "--query", save("x.npy", x), "--attn-mask",
                               save("mask.npy", mask), "--json"});
  ASSERT_EQ(result.code, kSuccess) << result.err;
  EXPECT_NE(json::parse(result.out)["output"]["max"], 0.0);
}

TEST_F(Run, SummariesCountWhatIsNotFinite) {
  Tensor x = draw({2, 3});
  x.data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  x.data<float>()[2] = std::numeric_limits<float>::infinity();
  const json summary = summary_json(x);
  EXPECT_EQ(summary["nan_count"], 1);
  EXPECT_EQ(summary["infinite_count"], 1);
  EXPECT_NE(cli::summary(x).find("1 NaN, 1 infinite"), std::string::npos);
  EXPECT_NE(cli::summary(Tensor(DType::f32, {2, 0})).find("empty"), std::string::npos);
}

TEST_F(Run, ColonsInNames) {
  const Tensor x = draw({2, 3});
  const std::vector<NamedView> both{{"a:0", x.view()}, {"b", x.view()}};
  save_npz(path("c:d.npz"), both);
  const TensorArg arg = split_tensor_arg(path("c:d.npz") + ":a:0");
  EXPECT_EQ(arg.path, path("c:d.npz"));
  EXPECT_EQ(arg.tensor, "a:0");
  EXPECT_FALSE(split_tensor_arg(path("c:d.npz")).named);
}

TEST_F(Run, UsageErrors) {
  const std::string x = save("x.npy", draw({2, 4, 12}));
  const std::vector<std::string> module{"--num-heads", "3", "--query", x};
  const auto with = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "run");
    args.insert(args.end(), module.begin(), module.end());
    return args;
  };
  const std::vector<std::vector<std::string>> wrong = {
      {"run"},
      {"run", "--sdpa"},
      {"run", "--query", x},
      {"run", "--query", x, "--embed-dim", "12"},
      {"run", "--query", "", "--sdpa"},
      with({}),
      with({"--embed-dim", "13"}),
      with({"--embed-dim", "0"}),
      with({"--embed-dim", "-12"}),
      with({"--embed-dim", "12", "--dropout", "2"}),
      with({"--embed-dim", "12", "--key", ""}),
      with({"--embed-dim", "12", "--out", ""}),
      with({"--embed-dim", "12", "--query", x}),
      with({"--embed-dim", "12", "--dropout", "nan"}),
      with({"--embed-dim", "12", "--dropout", "x"}),
      with({"--embed-dim", "12", "--num-kv-heads", "2"}),
      with({"--embed-dim", "12", "--weights", x}),
      with({"--weights", x, "--kdim", "3"}),
      with({"--prefix", "a."}),
      with({"--embed-dim", "12", "--sdpa"}),
      with({"--embed-dim", "12", "--scale", "1"}),
      with({"--embed-dim", "12", "--gqa"}),
      with({"--embed-dim", "12", "--bottom-right"}),
      with({"--embed-dim", "12", "--keep", "--ignore"}),
      with({"--embed-dim", "12", "--dtype", "f8"}),
      with({"--embed-dim", "12", "--isa", "none"}),
      with({"--embed-dim", "12", "--out", path("y.txt")}),
      with({"--embed-dim", "12", "--out", ".npy"}),
      with({"--embed-dim", "12", "--out", path("y.npz"), "--weights-out", path("y.npz")}),
      with({"--embed-dim", "12", "--out", path("y.npz"), "--weights-out", path("./y.npz")}),
      with({"--embed-dim", "12", "--out", path("y.safetensors"), "--save-module",
            path("./y.safetensors")}),
      with({"--embed-dim", "12", "--weights-out", path("y.safetensors"), "--save-module",
            path("y.safetensors")}),
      with({"--embed-dim", "12", "--save-module", path("m.npz")}),
      with({"--embed-dim", "12", "--no-weights", "--weights-out", path("w.npz")}),
      {"run", "--sdpa", "--query", x, "--weights-out", path("w.npy")},
      {"run", "--sdpa", "--query", x, "--key-padding-mask", x},
      {"run", "--sdpa", "--query", x, "--bottom-right"},
      {"run", "--sdpa", "--query", x, "--train"},
      {"run", "--sdpa", "--query", x, "--dropout", "1.5"},
  };
  for (const auto& args : wrong) {
    const CliResult result = run_cli(args);
    std::string line;
    for (const std::string& arg : args) line += arg + " ";
    EXPECT_EQ(result.code, kUsageError) << line << "\n" << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << line << result.err;
    EXPECT_EQ(result.out, "") << line;
  }
  EXPECT_FALSE(std::filesystem::exists(path("y.npz")));
}

TEST_F(Run, InputErrors) {
  const std::string x = save("x.npy", draw({2, 4, 12}));
  const std::string other = save("other.npy", draw({2, 4, 10}));
  const std::string flat = save("flat.npy", draw({12}));
  const std::string ints = save("ints.npy", Tensor::zeros(DType::i64, {2, 4, 12}));
  const std::vector<NamedView> none;
  save_npz(path("none.npz"), none);
  const Tensor t = draw({3});
  const std::vector<NamedView> two{{"a", t.view()}, {"b", t.view()}};
  save_npz(path("two.npz"), two);
  const auto module = [&](const std::string& query, std::vector<std::string> more = {}) {
    std::vector<std::string> args{"run", "--embed-dim", "12", "--num-heads", "3", "--query", query};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::vector<std::vector<std::string>> wrong = {
      module(path("missing.npy")),
      module(folder_.string()),
      module(other),
      module(flat),
      module(ints),
      module(path("two.npz")),
      module(path("two.npz") + ":c"),
      module(path("none.npz")),
      module(x, {"--key", other}),
      module(x, {"--attn-mask", ints}),
      module(x, {"--attn-mask", x}),
      module(x, {"--key-padding-mask", x}),
      module(x, {"--out", path("no/such/folder/y.npy")}),
      {"run", "--weights", x, "--num-heads", "3", "--query", x},
      {"run", "--weights", path("missing.safetensors"), "--num-heads", "3", "--query", x},
      {"run", "--sdpa", "--query", x, "--key", other},
      {"run", "--sdpa", "--query", flat},
  };
  for (const auto& args : wrong) {
    const CliResult result = run_cli(args);
    std::string line;
    for (const std::string& arg : args) line += arg + " ";
    EXPECT_EQ(result.code, kInputError) << line << "\n" << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << line << result.err;
    EXPECT_EQ(result.out, "") << line;
  }
  const std::string error = run_cli(module(x, {"--attn-mask", ints})).err;
  EXPECT_NE(error.find("attn_mask: found dtype i64, expected bool, f32"), std::string::npos)
      << error;
}

}  // namespace
}  // namespace headwise::cli
