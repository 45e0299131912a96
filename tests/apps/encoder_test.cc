// The encoder against transformers and torch, and what it refuses.
#include "encoder/encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/minilm.h"
#include "apps/tiny_model.h"
#include "encoder/model_folder.h"
#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/runtime.h"

namespace headwise::encoder {
namespace {

constexpr double kHiddenTolerance = 2e-5, kWeightTolerance = 1e-6;

class MinilmEncoder : public test::MinilmTest {
 protected:
  // Largest difference between x[layer, index[i], column] and the fixture's tensor.
  void expect_hidden(std::size_t n, const Tensor& hidden) const {
    const std::size_t T = hidden.shape()[1], d = hidden.shape()[2];
    const auto positions = values<std::int32_t>(n, "positions");
    const auto expected = values<float>(n, "hidden");
    ASSERT_EQ(expected.size(), hidden.shape()[0] * positions.size() * d);
    double worst = 0;
    for (std::size_t e = 0; e < expected.size(); ++e) {
      const std::size_t layer = e / (positions.size() * d);
      const auto t = static_cast<std::size_t>(positions[e / d % positions.size()]);
      const double found = hidden.data<float>()[(layer * T + t) * d + e % d];
      worst = std::max(worst, std::abs(found - expected[e]));
    }
    EXPECT_LE(worst, kHiddenTolerance) << "hidden states of text " << n;
  }

  void expect_hidden_mean(std::size_t n, const Tensor& hidden) const {
    const std::size_t T = hidden.shape()[1], d = hidden.shape()[2];
    const auto expected = values<float>(n, "hidden_mean");
    for (std::size_t e = 0; e < expected.size(); ++e) {
      double sum = 0;
      for (std::size_t t = 0; t < T; ++t) sum += hidden.data<float>()[(e / d * T + t) * d + e % d];
      ASSERT_NEAR(sum / static_cast<double>(T), expected[e], kHiddenTolerance) << "text " << n;
    }
  }

  void expect_weights(std::size_t n, const Tensor& weights) const {
    const std::size_t T = weights.shape()[2];
    const auto rows = values<std::int32_t>(n, "rows");
    const auto columns = values<std::int32_t>(n, "columns");
    const auto expected = values<float>(n, "weights");
    ASSERT_EQ(expected.size(), 72 * rows.size() * columns.size());
    double worst = 0, worst_sum = 0;
    for (std::size_t e = 0; e < expected.size(); ++e) {
      const std::size_t head = e / (rows.size() * columns.size());
      const auto t = static_cast<std::size_t>(rows[e / columns.size() % rows.size()]);
      const auto j = static_cast<std::size_t>(columns[e % columns.size()]);
      const double found = weights.data<float>()[(head * T + t) * T + j];
      worst = std::max(worst, std::abs(found - expected[e]));
    }
    for (std::size_t row = 0; row < 72 * T; ++row) {
      double sum = 0;
      for (std::size_t j = 0; j < T; ++j) sum += weights.data<float>()[row * T + j];
      worst_sum = std::max(worst_sum, std::abs(sum - 1));
    }
    EXPECT_LE(worst, kWeightTolerance) << "weights of text " << n;
    EXPECT_LE(worst_sum, kWeightTolerance) << "rows of text " << n;
  }
};

TEST_F(MinilmEncoder, AgreesWithTransformersAndTorch) {
  const ModelFolder folder = ModelFolder::open(test::model_folder());
  const Encoder encoder = Encoder::load(folder.weights(), folder.config);
  EXPECT_EQ(encoder.parameter_count(), 22565376u);  // BertModel without its pooler
  for (std::size_t n = 0; n < test::kMinilmRunTexts; ++n) {
    const TokenizedText text_n = folder.tokenizer.encode(text(n), folder.config.max_positions);
    const EncoderOutput found = encoder.run(text_n.ids);
    expect_hidden(n, found.hidden);
    expect_weights(n, found.weights);
    if (n == 0 || n == test::kMinilmLongText) expect_hidden_mean(n, found.hidden);
    const auto embedding = values<float>(n, "embedding");
    for (std::size_t i = 0; i < embedding.size(); ++i)
      ASSERT_NEAR(found.embedding.data<float>()[i], embedding[i], kHiddenTolerance) << n;
  }
}

EncoderOutput run_folder(const test::TempFolder& folder, std::span<const std::uint32_t> ids) {
  const ModelFolder model = ModelFolder::open(folder / "");
  return Encoder::load(model.weights(), model.config).run(ids);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.data<float>(), b.data<float>(), a.size() * sizeof(float)) == 0;
}

const std::vector<std::uint32_t> kIds = {2, 5, 6, 7, 8, 5, 9, 10, 3};

TEST(Encoder, SameBitsForAnyNumberOfThreads) {
  const test::TempFolder folder;
  test::TinyModel().write(folder);
  const int before = get_num_threads();
  set_num_threads(1);
  const EncoderOutput one = run_folder(folder, kIds);
  for (const int n : {2, 5}) {
    set_num_threads(n);
    const EncoderOutput other = run_folder(folder, kIds);
    EXPECT_TRUE(same_bits(one.hidden, other.hidden)) << n;
    EXPECT_TRUE(same_bits(one.weights, other.weights)) << n;
  }
  set_num_threads(before);
}

TEST(Encoder, TakesTheOtherNamesOfTheSameModel) {
  const test::TempFolder folder, other;
  test::TinyModel model;
  model.write(folder);
  const EncoderOutput expected = run_folder(folder, kIds);
  model.rename([](const std::string& name) {
    if (name.ends_with("LayerNorm.weight"))
      return "bert." + test::replaced(name, "Norm.weight", "Norm.gamma");
    if (name.ends_with("LayerNorm.bias"))
      return "bert." + test::replaced(name, "Norm.bias", "Norm.beta");
    return "bert." + name;
  });
  model.write(other);
  EXPECT_TRUE(same_bits(run_folder(other, kIds).hidden, expected.hidden));
}

TEST(Encoder, RefusesWrongIds) {
  const test::TempFolder folder;
  test::TinyModel().write(folder);
  EXPECT_THROW(run_folder(folder, {}), ArgumentError);
  EXPECT_THROW(run_folder(folder, std::vector<std::uint32_t>{2, 12, 3}), ArgumentError);
  EXPECT_THROW(run_folder(folder, std::vector<std::uint32_t>(41, 2)), ArgumentError);
  EXPECT_NO_THROW(run_folder(folder, std::vector<std::uint32_t>(40, 2)));
}

// Writes the model after `change` and expects an error that holds all of `parts`.
template <typename F>
void expect_refused(F change, std::initializer_list<const char*> parts) {
  const test::TempFolder folder;
  test::TinyModel model;
  change(model);
  model.write(folder);
  try {
    run_folder(folder, kIds);
    ADD_FAILURE() << "taken, expected an error with " << *parts.begin();
  } catch (const FileError& e) {
    for (const char* part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Encoder, RefusesSizesThatDifferFromTheWeights) {
  using test::TinyModel;
  const auto config = [](const char* from, const char* to) {
    return [=](TinyModel& m) { m.config = test::replaced(m.config, from, to); };
  };
  expect_refused(config("\"vocab_size\": 12", "\"vocab_size\": 13"),
                 {"model.safetensors", "word_embeddings", "(12, 8)", "(13, 8)"});
  expect_refused(config("size\": 16", "size\": 17"), {"intermediate.dense", "(16, 8)", "(17, 8)"});
  expect_refused(config("size\": 8", "size\": 4"), {"word_embeddings", "(12, 8)", "(12, 4)"});
  expect_refused(config("layers\": 2", "layers\": 1"), {"encoder.layer.1.", "num_hidden_layers 1"});
  expect_refused(config("layers\": 2", "layers\": 3"), {"encoder.layer.2.", "no such tensor"});
  expect_refused(config("layers\": 2", "layers\": 9999999999999"), {"encoder.layer.2."});
  expect_refused(config("embeddings\": 40", "embeddings\": 41"), {"position_embeddings"});
  expect_refused(config("\"hidden_act\"", "\"type_vocab_size\": 3, \"hidden_act\""),
                 {"token_type"});
}

TEST(Encoder, RefusesWrongTensors) {
  using test::TinyModel;
  const std::string query = "encoder.layer.1.attention.self.query.weight";
  expect_refused([&](TinyModel& m) { m.tensors.erase(query); }, {query.c_str(), "no such tensor"});
  expect_refused(
      [&](TinyModel& m) {
        m.tensors.at(query) = Tensor::zeros(DType::f32, {8, 9});
      },
      {query.c_str(), "(8, 9)", "(8, 8)"});
  expect_refused(
      [&](TinyModel& m) {
        m.tensors.at(query) = Tensor::zeros(DType::i32, {8, 8});
      },
      {query.c_str(), "I32"});
  expect_refused(
      [&](TinyModel& m) {
        m.tensors.at(query) = Tensor::zeros(DType::f32, {8, 8, 1});
      },
      {query.c_str(), "(8, 8, 1)"});
}

TEST(ModelFolder, RefusesVocabulariesThatDoNotFit) {
  using test::TinyModel;
  expect_refused([](TinyModel& m) { m.vocabulary += "more\n"; },
                 {"vocab.txt", "more than 12 words"});
  expect_refused([](TinyModel& m) { m.vocabulary = std::string(64 << 20, '\n'); },
                 {"vocab.txt", "more than 12 words"});
  expect_refused([](TinyModel& m) { m.vocabulary = std::string((64 << 20) + 1, '\n'); },
                 {"vocab.txt", "67108864"});
  expect_refused([](TinyModel& m) { m.vocabulary = "[UNK]\n[CLS]\n"; }, {"vocab.txt", "[SEP]"});
  expect_refused([](TinyModel& m) { m.vocabulary[0] = '\xFF'; }, {"vocab.txt", "UTF-8"});
  expect_refused([](TinyModel& m) { m.config = "[]"; }, {"config.json", "object"});
  expect_refused([](TinyModel& m) { m.config = std::string((1 << 20) + 1, ' '); },
                 {"config.json", "1048576"});
}

// Elements off their alignment have to be copied to be seen; to be refused they need not.
TEST(ModelFolder, RefusesUnalignedWeightsWithoutCopyingThem) {
  const test::TempFolder folder;
  test::TinyModel model;
  const std::size_t n_words = std::size_t{1} << 33;  // 256 GiB of holes
  std::string header = "{";
  std::size_t at = 0;
  for (const auto& [name, tensor] : model.tensors) {
    Shape shape = tensor.shape();
    if (name == "embeddings.word_embeddings.weight") shape[0] = n_words;
    std::string dims;
    for (const std::size_t n : shape) dims += (dims.empty() ? "" : ",") + std::to_string(n);
    const std::size_t begin = at;
    at += element_count(shape) * sizeof(float);
    header += (begin == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"F32","shape":[)" + dims +
              R"(],"data_offsets":[)" + std::to_string(begin) + ',' + std::to_string(at) + "]}";
  }
  header += '}';
  if (header.size() % sizeof(float) == 0) header += ' ';
  model.config = test::replaced(model.config, "\"vocab_size\": 12",
                                "\"vocab_size\": " + std::to_string(n_words));
  model.vocabulary = "[UNK]\n[CLS]\n";
  model.write(folder);
  const std::string weights = folder / "model.safetensors";
  test::write_bytes(weights, test::le(header.size(), 8) + header);
  std::error_code error;
  std::filesystem::resize_file(weights, 8 + header.size() + at, error);
  if (error) GTEST_SKIP() << "no sparse files here: " << error.message();
  try {
    ModelFolder::open(folder / "");
    ADD_FAILURE() << "taken";
  } catch (const FileError& e) {
    EXPECT_NE(std::string(e.what()).find("vocab.txt: found no word [SEP]"), std::string::npos)
        << e.what();
  }
}

TEST(ModelFolder, OpensOnlyTheFilesItNeeds) {
  const test::TempFolder folder, elsewhere;
  test::TinyModel model;
  model.write(folder);
  for (const char* missing : {"config.json", "vocab.txt", "model.safetensors"}) {
    model.write(folder);
    std::filesystem::remove(folder / missing);
    try {
      run_folder(folder, kIds);
      ADD_FAILURE() << missing;
    } catch (const FileError& e) {
      EXPECT_NE(std::string(e.what()).find(missing), std::string::npos) << e.what();
    }
  }
  model.write(folder);  // unreadable things beside the files change nothing
  for (const char* other : {"tokenizer.json", "special_tokens_map.json", "1_Pooling", "x.bin"})
    std::filesystem::create_symlink("/nowhere", folder / other);
  EXPECT_NO_THROW(run_folder(folder, kIds));
  test::write_bytes(folder / "tokenizer_config.json", "{\"do_lower_case\": 3}");
  EXPECT_THROW(run_folder(folder, kIds), FileError);
  test::write_bytes(folder / "tokenizer_config.json", "{}");
  std::filesystem::rename(folder / "vocab.txt", elsewhere / "words");  // links are followed
  std::filesystem::create_symlink(elsewhere / "words", folder / "vocab.txt");
  EXPECT_NO_THROW(run_folder(folder, kIds));
}

TEST(ModelFolder, RefusesWhatIsNoFolder) {
  const test::TempFolder folder;
  test::write_bytes(folder / "file", "x");
  EXPECT_THROW(ModelFolder::open(folder / "file"), FileError);
  EXPECT_THROW(ModelFolder::open(folder / "nothing"), FileError);
  EXPECT_THROW(ModelFolder::open(""), FileError);
}

}  // namespace
}  // namespace headwise::encoder
