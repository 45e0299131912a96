#include "encoder/model_folder.h"

#include <filesystem>
#include <utility>

#include "encoder/weights.h"
#include "headwise/io.h"
#include "io/refusal.h"
#include "io/text_file.h"

namespace headwise::encoder {
namespace {

constexpr const char* kWeightsFile = "/model.safetensors";
constexpr std::size_t kMaxVocabularyBytes = std::size_t{64} << 20;

// What `parse` makes of a small file; what it refuses is told with the file's name.
template <typename Parse>
auto read(const std::string& path, std::size_t max_bytes, Parse parse) {
  const std::string text = io::read_regular_file(path, max_bytes);
  try {
    return parse(text);
  } catch (const io::Refusal& refusal) {
    throw io::file_error(path, refusal);
  }
}

}  // namespace

std::string ModelFolder::weights() const { return path + kWeightsFile; }

ModelFolder ModelFolder::open(const std::string& path) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  if (!std::filesystem::is_directory(status))
    throw io::file_error(path,
                         io::Refusal(std::filesystem::exists(status) ? "a file" : "nothing there",
                                     "a folder with config.json, vocab.txt and model.safetensors"));

  const EncoderConfig config = read(path + "/config.json", kMaxConfigBytes, parse_encoder_config);
  // Checks the sizes, so that the reader of vocab.txt can trust vocab_size.
  check_weights(TensorFile::open(path + kWeightsFile), config);
  TokenizerOptions options;
  const std::string tokenizer_file = path + "/tokenizer_config.json";
  if (std::filesystem::exists(tokenizer_file, none))
    options = read(tokenizer_file, kMaxConfigBytes, parse_tokenizer_config);
  const auto make_tokenizer = [&](std::string_view text) {
    return Tokenizer(Vocabulary::parse(text, config.vocab_size), options);
  };
  return {path, config, read(path + "/vocab.txt", kMaxVocabularyBytes, make_tokenizer)};
}

}  // namespace headwise::encoder
