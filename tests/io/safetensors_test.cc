// Each rule of the format with a file that breaks it and one that just keeps it.
#include "io/safetensors.h"

#include <string>
#include <vector>

#include "io/support.h"

namespace headwise::io {
namespace {

std::string with_length(const std::string& header, std::size_t data_bytes = 0) {
  return test::le(header.size(), 8) + header + std::string(data_bytes, '\1');
}

std::string tensor(const std::string& shape, int begin, int end, const std::string& dtype = "F32") {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

class Safetensors : public ::testing::Test {
 protected:
  TensorFile open(const std::string& bytes) {
    test::write_bytes(folder_ / "f", bytes);
    return TensorFile::open(folder_ / "f");
  }
  // What the message says behind the file's name.
  std::string refusal(const std::string& bytes) {
    test::write_bytes(folder_ / "f", bytes);
    const std::string message = test::file_error_of([&] { TensorFile::open(folder_ / "f"); });
    EXPECT_TRUE(message.starts_with(folder_ / "f")) << message;
    return message.substr(std::min(message.size(), (folder_ / "f").size()));
  }
  std::size_t count(const std::string& header, std::size_t data_bytes = 0) {
    return open(with_length(header, data_bytes)).tensors().size();
  }

  test::TempFolder folder_;
};

TEST_F(Safetensors, HeaderLength) {
  EXPECT_EQ(refusal(""), ": found 0 bytes, expected a .safetensors, .npy or .npz file");
  EXPECT_EQ(refusal("1234567"), ": found 7 bytes, expected a .safetensors, .npy or .npz file");
  EXPECT_EQ(refusal(test::le(3, 8) + "{}"),
            ": found a header of 3 bytes in a file of 10, expected a header within the file");
  EXPECT_EQ(open(test::le(2, 8) + "{}").tensors().size(), 0u);
  EXPECT_TRUE(
      refusal(test::le(~std::uint64_t{0}, 8) + "{}")
          .starts_with(": found first bytes that give a header length of 18446744073709551615"));
  const std::string padding(safetensors::kMaxHeader - 2, ' ');
  EXPECT_EQ(count("{}" + padding), 0u);
  EXPECT_TRUE(refusal(with_length("{}" + padding + " "))
                  .starts_with(": found first bytes that give a header length of 100000001"));
}

TEST_F(Safetensors, FirstLetter) {
  EXPECT_EQ(count(" \t\r\n{} \n"), 0u);
  EXPECT_EQ(refusal(with_length("[]")), ": found a header that begins with \"[\", expected {");
  EXPECT_EQ(refusal(with_length("\xef\xbb\xbf{}")),
            ": found a header that begins with \"\\xef\", expected {");
  EXPECT_EQ(refusal(with_length("   ")), ": found a header of blanks, expected {");
  EXPECT_EQ(refusal(with_length("")), ": found a header of blanks, expected {");
  EXPECT_EQ(refusal(with_length("{}x")),
            ": found text that is not JSON at offset 3 of the JSON, expected JSON");
  EXPECT_EQ(refusal(with_length(std::string("{}\0", 3))),
            ": found a zero byte at offset 2 of the JSON, expected JSON");
}

TEST_F(Safetensors, Utf8) {
  EXPECT_EQ(count("{\"gr\u00fcn\":" + tensor("[1]", 0, 4) + "}", 4), 1u);
  EXPECT_EQ(refusal(with_length("{\"gr\xfcn\":" + tensor("[1]", 0, 4) + "}", 4)),
            ": found a byte that is not UTF-8 at offset 4 of the JSON, expected UTF-8");
}

TEST_F(Safetensors, Nesting) {
  const auto nested = [](const std::string& extra) {
    return R"({"t":{"extra":)" + extra + R"(,"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  };
  EXPECT_EQ(count(nested("[{}]"), 4), 1u);
  EXPECT_EQ(refusal(with_length(nested("[[[]]]"), 4)),
            ", tensor t: found JSON nested deeper than 4 levels, expected at most 4");
  EXPECT_TRUE(
      refusal(with_length("{\"t\":" + std::string(200000, '['))).starts_with(", tensor t: found"));
}

TEST_F(Safetensors, DuplicateKeys) {
  const std::string a = tensor("[0]", 0, 0);
  EXPECT_EQ(count("{\"a\":" + a + ",\"b\":" + a + "}"), 2u);
  EXPECT_EQ(refusal(with_length("{\"a\":" + a + ",\"a\":" + a + "}")),
            ", tensor a: found the key \"a\" twice, expected each key once");
  EXPECT_TRUE(refusal(with_length("{\"a\":" + a + ",\"\\u0061\":" + a + "}"))
                  .ends_with("found the key \"a\" twice, expected each key once"));
  EXPECT_EQ(refusal(with_length(
                R"({"a":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}})")),
            ", tensor a: found the key \"dtype\" twice, expected each key once");
  EXPECT_EQ(refusal(with_length(
                R"({"a":{"x":{"y":1,"y":1},"dtype":"F32","shape":[0],"data_offsets":[0,0]}})")),
            ", tensor a: found the key \"y\" twice, expected each key once");
  EXPECT_EQ(refusal(with_length(R"({"__metadata__":{},"__metadata__":{}})")),
            ", tensor __metadata__: found the key \"__metadata__\" twice, expected each key once");
  const TensorFile file = open(with_length(R"({"__metadata__":{"k":"1","k":"2"}})"));
  EXPECT_EQ(file.metadata().at("k"), "2");
}

TEST_F(Safetensors, FieldsOfATensor) {
  EXPECT_EQ(refusal(with_length(R"({"t":{"shape":[0],"data_offsets":[0,0]}})")),
            ", tensor t: found no dtype, expected dtype, shape and data_offsets");
  EXPECT_EQ(refusal(with_length(R"({"t":{"dtype":"F32","data_offsets":[0,0]}})")),
            ", tensor t: found no shape, expected dtype, shape and data_offsets");
  EXPECT_EQ(refusal(with_length(R"({"t":{"dtype":"F32","shape":[0]}})")),
            ", tensor t: found no data_offsets, expected a begin and an end");
  for (const char* value : {"null", "true", "1", "-1", "1.5", "\"x\"", "[]"})
    EXPECT_TRUE(refusal(with_length("{\"t\":" + std::string(value) + "}"))
                    .starts_with(", tensor t: found "))
        << value;
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    for (const char* value : {"null", "true", "1", "1.5", "\"x\"", "{}", "[null]", "[[]]", "[{}]",
                              "[-1]", "[1.0]", "[1e0]", "[\"1\"]", "[true]"}) {
      const auto entry = [&](const std::string& name, const std::string& otherwise) {
        return "\"" + name + "\":" + (name == field ? std::string(value) : otherwise);
      };
      EXPECT_TRUE(
          refusal(with_length("{\"t\":{" + entry("dtype", "\"F32\"") + "," + entry("shape", "[0]") +
                              "," + entry("data_offsets", "[0,0]") + "}}"))
              .starts_with(", tensor t: found "))
          << field << value;
    }
  }
  EXPECT_EQ(refusal(with_length(R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0]}})")),
            ", tensor t: found 1 data_offsets, expected a begin and an end");
  EXPECT_EQ(refusal(with_length(R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0,0]}})")),
            ", tensor t: found 3 data_offsets, expected a begin and an end");
  EXPECT_EQ(count(R"({"t":{"x":[1,{}],"data_offsets":[0,0],"y":null,"shape":[0],"dtype":"F32"}})"),
            1u);
}

TEST_F(Safetensors, TooManyPartsOfOneTensor) {
  const auto header = [](std::size_t values) {
    std::string list = "[0";
    for (std::size_t i = 1; i < values; ++i) list += ",0";
    return R"({"t":{"x":)" + list + R"(],"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
  };
  const std::size_t others = 4 + 3 + 1 + 3;  // keys, arrays, dtype, numbers of shape and offsets
  EXPECT_EQ(count(header(safetensors::kMaxParts - others)), 1u);
  EXPECT_EQ(refusal(with_length(header(safetensors::kMaxParts - others + 1))),
            ", tensor t: found more than 65536 keys and values, expected less");
}

TEST_F(Safetensors, RefusesAMillionKeysOfMetadata) {
  const auto header = [](std::size_t n) {
    std::string text = R"({"__metadata__":{"":"")";
    for (std::size_t i = 1; i < n; ++i) text += R"(,"":"")";
    return text + "}}";
  };
  EXPECT_EQ(open(with_length(header(safetensors::kMaxMetadata))).metadata().size(), 1u);
  EXPECT_EQ(refusal(with_length(header(safetensors::kMaxMetadata + 1))),
            ", tensor __metadata__: found more than 1048576 keys, expected less");
}

TEST_F(Safetensors, EveryDtypeIsListedAndOthersAreNot) {
  const std::vector<std::pair<std::string, int>> dtypes = {
      {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},      {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"I16", 16},        {"U16", 16},        {"F16", 16},    {"BF16", 16},
      {"I32", 32},    {"U32", 32},        {"F32", 32},        {"C64", 64},    {"F64", 64},
      {"I64", 64},    {"U64", 64}};
  for (const auto& [dtype, bits] : dtypes) {
    const TensorFile file = open(with_length("{\"t\":" + tensor("[4]", 0, bits / 2, dtype) + "}",
                                             static_cast<std::size_t>(bits) / 2));
    ASSERT_EQ(file.tensors().size(), 1u);
    const TensorInfo& info = file.tensors()[0];
    EXPECT_EQ(info.dtype, dtype);
    EXPECT_EQ(info.bytes, static_cast<std::uint64_t>(bits) / 2);
    if (info.type) {
      EXPECT_EQ(size_of(*info.type) * 8, static_cast<std::size_t>(bits));
      EXPECT_EQ(file.view("t").shape, Shape{4});
    } else {
      EXPECT_TRUE(test::file_error_of([&] { file.view("t"); })
                      .ends_with("tensor t: found dtype " + dtype +
                                 ", expected a dtype that headwise can compute with"));
    }
  }
  EXPECT_EQ(refusal(with_length("{\"t\":" + tensor("[1]", 0, 4, "f32") + "}", 4)),
            ", tensor t: found dtype f32, expected a dtype of the format, such as F32 or BF16");
  EXPECT_EQ(refusal(with_length("{\"t\":" + tensor("[3]", 0, 1, "F4") + "}", 1)),
            ", tensor t: found 12 bits, expected whole bytes");
}

TEST_F(Safetensors, Dimensions) {
  EXPECT_EQ(open(with_length("{\"t\":" + tensor("[0,9223372036854775807]", 0, 0) + "}"))
                .tensors()[0]
                .shape[1],
            9223372036854775807u);
  EXPECT_EQ(refusal(with_length("{\"t\":" + tensor("[0,9223372036854775808]", 0, 0) + "}")),
            ", tensor t: found a shape with 9223372036854775808, expected whole numbers from 0 to "
            "2^63 - 1");
  EXPECT_EQ(refusal(with_length("{\"t\":" + tensor("[4294967296,4294967296]", 0, 0) + "}")),
            ", tensor t: found a shape whose size overflows, expected at most 2^64 - 1 bits");
  EXPECT_EQ(refusal(with_length("{\"t\":" + tensor("[1152921504606846976]", 0, 0) + "}")),
            ", tensor t: found a shape whose size overflows, expected at most 2^64 - 1 bits");
  EXPECT_TRUE(
      refusal(with_length("{\"t\":" + tensor("[123456789012345678901234567890]", 0, 0) + "}"))
          .starts_with(", tensor t: found a shape with a number with"));
  const TensorFile file = open(with_length("{\"t\":" + tensor("[]", 0, 4) + "}", 4));
  EXPECT_EQ(file.view("t").shape, Shape{});
}

TEST_F(Safetensors, Offsets) {
  const auto one = [](int begin, int end) { return "{\"t\":" + tensor("[2]", begin, end) + "}"; };
  EXPECT_EQ(count(one(0, 8), 8), 1u);
  EXPECT_EQ(refusal(with_length(one(0, 9), 9)),
            ", tensor t: found 9 bytes, expected 8 for its dtype and shape");
  EXPECT_EQ(
      refusal(with_length(one(0, 8), 7)),
      ", tensor t: found data_offsets 0 to 8, expected a range within the file's 7 bytes of data");
  EXPECT_EQ(
      refusal(with_length(one(8, 0), 8)),
      ", tensor t: found data_offsets 8 to 0, expected a range within the file's 8 bytes of data");
  EXPECT_EQ(
      refusal(with_length(one(1, 9), 9)),
      ", tensor t: found a gap in front of its bytes, which begin at 1, expected bytes from 0 on");
  EXPECT_EQ(refusal(with_length(one(0, 8), 9)),
            ": found 9 bytes of data, expected 8 for its tensors");
  EXPECT_EQ(refusal(with_length("{}", 1)), ": found 1 bytes of data, expected 0 for its tensors");
}

TEST_F(Safetensors, GapsAndOverlap) {
  const auto two = [](int a, int b) {
    return "{\"a\":" + tensor("[2]", a, a + 8) + ",\"b\":" + tensor("[2]", b, b + 8) + "}";
  };
  EXPECT_EQ(count(two(0, 8), 16), 2u);
  EXPECT_EQ(count(two(8, 0), 16), 2u);  // any order
  EXPECT_EQ(refusal(with_length(two(0, 4), 12)),
            ", tensor b: found an overlap in front of its bytes, which begin at 4, expected bytes "
            "from 8 on");
  EXPECT_EQ(refusal(with_length(two(0, 0), 8)),
            ", tensor b: found an overlap in front of its bytes, which begin at 0, expected bytes "
            "from 8 on");
  EXPECT_TRUE(refusal(with_length(two(0, 9), 17)).starts_with(", tensor b: found a gap"));
  const auto empty_at = [](int at) {
    return "{\"a\":" + tensor("[2]", 0, 8) + ",\"e\":" + tensor("[0]", at, at) + "}";
  };
  EXPECT_EQ(count(empty_at(0), 8), 2u);
  EXPECT_EQ(count(empty_at(8), 8), 2u);
  EXPECT_TRUE(refusal(with_length(empty_at(4), 8)).starts_with(", tensor e: found an overlap"));
}

TEST_F(Safetensors, Metadata) {
  EXPECT_EQ(open(with_length(R"({"__metadata__":{"a":"b","":""}})")).metadata().size(), 2u);
  for (const char* value :
       {"null", "1", "\"x\"", "[]", "{\"a\":1}", "{\"a\":null}", "{\"a\":[]}", "{\"a\":{}}"})
    EXPECT_TRUE(refusal(with_length("{\"__metadata__\":" + std::string(value) + "}"))
                    .starts_with(", tensor __metadata__: found "))
        << value;
}

TEST_F(Safetensors, UnalignedDataIsCopied) {
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const std::string header =
        "{\"t\":" + tensor("[2]", 0, 16, "F64") + "}" + std::string(padding, ' ');
    const double values[2] = {1.5, -2.25};
    std::string bytes(reinterpret_cast<const char*>(values), sizeof values);
    const TensorFile file = open(test::le(header.size(), 8) + header + bytes);
    const ConstTensorView view = file.view("t");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % alignof(double), 0u);
    test::expect_equal(view, {values, {2}});
    EXPECT_EQ(file.view("t").data, view.data);
  }
}

TEST_F(Safetensors, MoreDimsThanAViewHasAreListed) {
  std::string shape = "[1";
  for (std::size_t i = 0; i < kMaxRank; ++i) shape += ",1";
  const TensorFile file = open(with_length("{\"t\":" + tensor(shape + "]", 0, 4) + "}", 4));
  EXPECT_EQ(file.tensors()[0].shape.size(), kMaxRank + 1);
  EXPECT_TRUE(test::file_error_of([&] {
                file.view("t");
              }).ends_with("tensor t: found 17 dims, expected at most 16"));
}

TEST_F(Safetensors, NamesAreShownEscaped) {
  EXPECT_EQ(refusal(with_length(R"({"\u001b[31m\u202e\n":1})")),
            ", tensor \\x1b[31m\\u202e\\n: found a number, expected an object");
}

}  // namespace
}  // namespace headwise::io
