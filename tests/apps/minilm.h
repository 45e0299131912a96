// The real model, when it is there, and what transformers and torch make of it
// (tests/fixtures/make_minilm.py).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "gtest/gtest.h"
#include "headwise/io.h"
#include "nlohmann/json.hpp"

namespace headwise::test {

constexpr std::size_t kMinilmTexts = 21;    // tokenized
constexpr std::size_t kMinilmRunTexts = 8;  // and run through the model
constexpr std::size_t kMinilmLongText = 7;  // cut at 512 tokens

// scripts/test downloads the package with the model and sets this.
inline std::string model_folder() {
  const char* folder = std::getenv("HEADWISE_MODEL");
  return folder == nullptr ? "" : folder;
}

class MinilmTest : public testing::Test {
 protected:
  void SetUp() override {
    if (model_folder().empty())
      GTEST_SKIP() << "HEADWISE_MODEL is not set to a folder with all-MiniLM-L6-v2";
  }

  std::string text(std::size_t n) const {
    return nlohmann::json::parse(fixture_.metadata().at(std::to_string(n))).get<std::string>();
  }
  ConstTensorView tensor(std::size_t n, const std::string& name) const {
    return fixture_.view(std::to_string(n) + '.' + name);
  }
  template <typename T>
  std::span<const T> values(const std::string& name) const {
    const ConstTensorView view = fixture_.view(name);
    EXPECT_EQ(view.dtype, dtype_of_v<T>) << name;
    return {static_cast<const T*>(view.data), element_count(view.shape)};
  }
  template <typename T>
  std::span<const T> values(std::size_t n, const std::string& name) const {
    return values<T>(std::to_string(n) + '.' + name);
  }

  TensorFile fixture_ = TensorFile::open(HEADWISE_FIXTURES "/minilm.safetensors");
};

}  // namespace headwise::test
