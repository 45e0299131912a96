// Each rule of the format beyond the zip directory's.
#include "io/npz.h"

#include <string>
#include <vector>

#include "io/refusal.h"
#include "io/support.h"

namespace headwise::io {
namespace {

using test::floats_npy;
using test::ZipBuilder;
using test::ZipMember;

class Npz : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "f.npz"; }
  TensorFile open(const std::vector<ZipMember>& members) {
    ZipBuilder zip;
    for (const ZipMember& member : members) zip.add(member);
    test::write_bytes(path(), zip.finish());
    return TensorFile::open(path());
  }
  template <typename F>
  std::string refusal(F&& action) {
    const std::string message = test::file_error_of(action);
    return message.substr(std::min(message.size(), path().size()));
  }

  test::TempFolder folder_;
};

TEST_F(Npz, StoredMembersAreMappedDeflatedOnesInflated) {
  const std::vector<float> expected(1000, std::bit_cast<float>(0x01010101u));
  for (const bool deflate : {false, true}) {
    const TensorFile file =
        open({{"a.npy", floats_npy(1000), deflate}, {"b/c.npy", floats_npy(0)}});
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(file.tensors()[0].name, "a");
    EXPECT_EQ(file.tensors()[1].name, "b/c");
    test::expect_equal(file.view("a"), {expected.data(), {1000}});
    EXPECT_EQ(file.view("a").data, file.view("a").data);
    EXPECT_EQ(file.view("b/c").shape, Shape{0});
  }
}

TEST_F(Npz, MembersThatAreNoArraysAreRefused) {
  EXPECT_TRUE(refusal([&] {
                open({{"a.npy", floats_npy(1)}, {"readme.txt", "x"}});
              }).starts_with(", tensor readme.txt: found a member that is no array"));
  EXPECT_TRUE(refusal([&] {
                open({{"archive/data.pkl", "x"}});
              }).starts_with(", tensor archive/data.pkl: found a member that is no array"));
  EXPECT_EQ(refusal([&] {
              open({{"a.npy", "not npy at all"}});
            }),
            ", tensor a: found no .npy magic, expected \\x93NUMPY as first bytes");
}

TEST_F(Npz, SizesAgreeWithTheNpyHeader) {
  for (const bool deflate : {false, true}) {
    const std::string npy = floats_npy(100);
    EXPECT_EQ(open({{"a.npy", npy, deflate}}).tensors().size(), 1u);
    EXPECT_EQ(refusal([&] {
                open({{"a.npy", npy + "x", deflate}});
              }),
              ", tensor a: found a member with 401 bytes of data, expected 400 for its dtype and "
              "shape");
    EXPECT_EQ(refusal([&] {
                open({{"a.npy", npy.substr(0, npy.size() - 1), deflate}});
              }),
              ", tensor a: found 399 bytes of data, expected 400 for its dtype and shape");
  }
}

TEST_F(Npz, ChecksumsAreVerifiedWhenElementsAreAskedFor) {
  for (const bool deflate : {false, true}) {
    ZipMember member("a.npy", floats_npy(10), deflate);
    ++member.crc;
    const TensorFile file = open({member});
    EXPECT_TRUE(refusal([&] {
                  file.view("a");
                }).starts_with(", tensor a: found damaged data (its checksum is "));
  }
}

TEST_F(Npz, DeflatedDataThatEndsEarlyOrLate) {
  std::string npy = floats_npy(10000);
  for (std::size_t i = 200; i < npy.size(); ++i)
    npy[i] = static_cast<char>(i * 2654435761u >> 13);  // so that half of it is not the header
  ZipMember early("a.npy", npy, true);
  early.stored.resize(early.stored.size() / 2);
  early.stored_bytes = early.stored.size();
  const TensorFile file = open({early, {"b.npy", floats_npy(1)}});
  EXPECT_TRUE(refusal([&] { file.view("a"); }).starts_with(", tensor a"));
  EXPECT_EQ(file.view("b").shape, Shape{1});

  ZipMember late("a.npy", floats_npy(10) + "more", true);
  late.plain_bytes -= 4;
  const TensorFile longer = open({late});
  EXPECT_EQ(refusal([&] { longer.view("a"); }),
            ", tensor a: found more data than the zip directory says, expected " +
                std::to_string(late.plain_bytes) + " bytes");
}

TEST_F(Npz, AHeaderThatIsPackedToNothingIsBounded) {
  const std::string blanks(npy::kMaxHeader - 100, ' ');
  const std::string dict = "{'descr': '|u1', 'fortran_order': False, 'shape': (0,)}" + blanks;
  const std::string npy = std::string("\x93NUMPY\x02\x00", 8) + test::le(dict.size(), 4) + dict;
  std::vector<ZipMember> members;
  for (std::size_t i = 0; i < npz::kMaxHeaders / npy.size(); ++i)
    members.emplace_back(std::to_string(i) + ".npy", npy, true);
  EXPECT_EQ(open(members).tensors().size(), members.size());
  members.emplace_back("one_more.npy", npy, true);
  EXPECT_EQ(refusal([&] { open(members); }),
            ", tensor one_more: found more than 67108864 bytes of .npy headers, expected less");
}

TEST_F(Npz, ObjectsAndDuplicatesAreRefused) {
  const std::string objects =
      test::npy_of("{'descr': '|O', 'fortran_order': False, 'shape': (0,), }", "");
  EXPECT_TRUE(refusal([&] {
                open({{"a.npy", objects}});
              }).starts_with(", tensor a: found Python objects"));
  EXPECT_EQ(refusal([&] {
              open({{"a.npy", floats_npy(1)}, {"a.npy", floats_npy(1)}});
            }),
            ", tensor a.npy: found two members of this name, expected each name once");
}

}  // namespace
}  // namespace headwise::io
