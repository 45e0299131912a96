// Each rule of the format with a file that breaks it and one that just keeps it.
#include "io/npy.h"

#include <string>
#include <vector>

#include "io/support.h"

namespace headwise::io {
namespace {

std::string dict(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }\n";
}

std::string npy(const std::string& header, const std::string& data, int version = 1) {
  return "\x93NUMPY" + test::le(static_cast<std::uint64_t>(version), 2) +
         test::le(header.size(), version == 1 ? 2 : 4) + header + data;
}

class Npy : public ::testing::Test {
 protected:
  TensorFile open(const std::string& bytes) {
    test::write_bytes(folder_ / "f", bytes);
    return TensorFile::open(folder_ / "f");
  }
  std::string refusal(const std::string& bytes) {
    test::write_bytes(folder_ / "f", bytes);
    const std::string message = test::file_error_of([&] { TensorFile::open(folder_ / "f"); });
    EXPECT_TRUE(message.starts_with(folder_ / "f: ")) << message;
    return message.substr(std::min(message.size(), (folder_ / "f: ").size()));
  }

  test::TempFolder folder_;
};

TEST_F(Npy, Versions) {
  const std::string one(4, '\1');
  for (int version = 1; version <= 3; ++version)
    EXPECT_EQ(open(npy(dict("<f4", "(1,)"), one, version)).tensors().size(), 1u);
  EXPECT_EQ(refusal(npy(dict("<f4", "(1,)"), one, 4)),
            "found .npy version 4.0, expected 1.0, 2.0 or 3.0");
  EXPECT_EQ(refusal(npy(dict("<f4", "(1,)"), one, 0)),
            "found .npy version 0.0, expected 1.0, 2.0 or 3.0");
  EXPECT_EQ(refusal(npy(dict("<f4", "(1,)"), one, 257)),
            "found .npy version 1.1, expected 1.0, 2.0 or 3.0");
  EXPECT_NE(refusal("\x93NUMPX\x01"), "");  // then it is taken for safetensors
}

TEST_F(Npy, HeaderLength) {
  const std::string whole = npy(dict("<f4", "(1,)"), std::string(4, '\1'));
  for (std::size_t n = 6; n < whole.size(); ++n) EXPECT_NE(refusal(whole.substr(0, n)), "");
  const auto padded = [](std::size_t bytes) {
    std::string header = dict("<f4", "(0,)");
    return header + std::string(bytes - header.size(), ' ');
  };
  EXPECT_EQ(open(npy(padded(npy::kMaxHeader), "", 2)).tensors().size(), 1u);
  EXPECT_EQ(refusal(npy(padded(npy::kMaxHeader + 1), "", 2)),
            "found an .npy header of 1048577 bytes, expected at most 1048576");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\x02\x00", 8) + test::le(0xffffffff, 4)),
            "found an .npy header of 4294967295 bytes, expected at most 1048576");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\x01\x00", 8) + test::le(100, 2) + "{}"),
            "found an .npy header of 100 bytes in 12, expected the whole header");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\x01\x00", 8)),
            "found a file of 8 bytes, expected the whole .npy header");
}

TEST_F(Npy, Data) {
  EXPECT_EQ(open(npy(dict("<f4", "(2, 3)"), std::string(24, '\1'))).tensors()[0].bytes, 24u);
  EXPECT_EQ(refusal(npy(dict("<f4", "(2, 3)"), std::string(23, '\1'))),
            "found 23 bytes of data, expected 24 for its dtype and shape");
  EXPECT_EQ(open(npy(dict("<f4", "(2, 3)"), std::string(25, '\1'))).tensors()[0].bytes, 24u);
  EXPECT_EQ(open(npy(dict("<f4", "()"), std::string(4, '\1'))).view("").shape, Shape{});
  EXPECT_EQ(open(npy(dict("<f4", "(0, 9223372036854775807)"), "")).tensors()[0].bytes, 0u);
  EXPECT_EQ(refusal(npy(dict("<f4", "(4294967296, 4294967296)"), "")),
            "found a shape whose size overflows, expected at most 2^64 - 1 bytes");
  EXPECT_EQ(refusal(npy(dict("<f8", "(4611686018427387904,)"), "")),
            "found a shape whose size overflows, expected at most 2^64 - 1 bytes");
  EXPECT_EQ(refusal(npy(dict("<f4", "(4611686018427387903,)"), "")),
            "found 0 bytes of data, expected 18446744073709551612 for its dtype and shape");
}

TEST_F(Npy, Dtypes) {
  const std::vector<std::pair<std::string, DType>> known = {
      {"<f4", DType::f32},     {"<f8", DType::f64},   {"<f2", DType::f16},
      {"<V2", DType::bf16},    {"|V2", DType::bf16},  {"bfloat16", DType::bf16},
      {"|b1", DType::boolean}, {"?", DType::boolean}, {"|u1", DType::u8},
      {"|i1", DType::i8},      {"<u2", DType::u16},   {"<i2", DType::i16},
      {"<u4", DType::u32},     {"<i4", DType::i32},   {"<u8", DType::u64},
      {"<i8", DType::i64},     {"=f4", DType::f32},   {"f4", DType::f32}};
  for (const auto& [descr, type] : known) {
    const TensorFile file = open(npy(dict(descr, "(2,)"), std::string(16, '\1')));
    EXPECT_EQ(file.tensors()[0].dtype, descr);
    EXPECT_EQ(file.tensors()[0].type, type) << descr;
    EXPECT_EQ(file.tensors()[0].bytes, 2 * size_of(type));
  }
  const std::vector<std::pair<std::string, std::uint64_t>> listed = {
      {"<c8", 8}, {"<c16", 16}, {"<f16", 16},   {"|S5", 5}, {"<U3", 12},
      {"|V7", 7}, {"|V1", 1},   {"<M8[ns]", 8}, {"<m8", 8}, {"|S0", 0}};
  for (const auto& [descr, bytes] : listed) {
    const TensorFile file = open(npy(dict(descr, "(2,)"), std::string(32, '\1')));
    EXPECT_EQ(file.tensors()[0].bytes, 2 * bytes) << descr;
    EXPECT_FALSE(file.tensors()[0].type);
    EXPECT_TRUE(
        test::file_error_of([&] {
          file.view("");
        }).ends_with("found dtype " + descr + ", expected a dtype that headwise can compute with"));
  }
  for (const char* descr : {"", "<", "f", "f3", "<f-4", "<f4x", "<f04", "float32", "<x4", "<b2",
                            "|S", "|S-1", "|S99999999999999999999", "|S3000000000", "<<f4", "M4"})
    EXPECT_EQ(
        refusal(npy(dict(descr, "(1,)"), std::string(8, '\1'))),
        "found dtype '" + std::string(descr) + "', expected a NumPy element type such as '<f4'");
  for (const char* descr : {"|O", "O", "|O8"})
    EXPECT_EQ(refusal(npy(dict(descr, "(1,)"), std::string(8, '\1'))),
              "found Python objects (dtype '" + std::string(descr) +
                  "'), expected numbers: objects are pickled and could run code");
}

TEST_F(Npy, BigEndianIsTurned) {
  const float expected[2] = {1.5f, -2.0f};
  const std::string data("\x3f\xc0\x00\x00\xc0\x00\x00\x00", 8);
  const TensorFile file = open(npy(dict(">f4", "(2,)"), data));
  test::expect_equal(file.view(""), {expected, {2}});
  const TensorFile bytes = open(npy(dict(">u1", "(2,)"), "ab"));
  EXPECT_EQ(*static_cast<const char*>(bytes.view("").data), 'a');
}

TEST_F(Npy, FortranOrderIsATransposedView) {
  const std::int32_t column_major[6] = {1, 4, 2, 5, 3, 6}, expected[6] = {1, 2, 3, 4, 5, 6};
  const TensorFile file =
      open(npy(dict("<i4", "(2, 3)", true),
               std::string(reinterpret_cast<const char*>(column_major), sizeof column_major)));
  EXPECT_EQ(file.view("").strides, (Strides{1, 2}));
  test::expect_equal(file.view(""), {expected, {2, 3}});
  const TensorFile empty = open(npy(dict("<f4", "(4611686018427387904, 2, 0)", true), ""));
  EXPECT_EQ(empty.view("").shape[2], 0u);
}

TEST_F(Npy, WrittenHeadersAreMultiplesOf64AndComeBack) {
  for (std::size_t rank = 0; rank <= kMaxRank; ++rank) {
    std::vector<std::size_t> shape(rank, 1234567890123);
    shape.insert(shape.begin(), 0);
    const std::string header = npy::write_header(DType::f64, shape);
    EXPECT_EQ(header.size() % 64, 0u);
    const auto contents = npy::parse(std::as_bytes(std::span(header)), header.size());
    EXPECT_EQ(contents.shape, std::vector<std::uint64_t>(shape.begin(), shape.end()));
    EXPECT_EQ(contents.type, DType::f64);
  }
}

}  // namespace
}  // namespace headwise::io
