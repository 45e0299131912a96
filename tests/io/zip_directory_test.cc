// Each rule of the zip directory with a file that breaks it and one that just keeps it.
#include "io/zip_directory.h"

#include <string>
#include <vector>

#include "io/refusal.h"
#include "io/support.h"

namespace headwise::io::zip {
namespace {

using test::le;
using test::ZipBuilder;
using test::ZipMember;

std::vector<Member> members_of(const std::string& file) {
  return read_directory(SpanSource(std::as_bytes(std::span(file))));
}

std::string refusal_of(const std::string& file) {
  try {
    members_of(file);
  } catch (const Refusal& refusal) {
    return refusal.tensor().empty() ? refusal.found() : refusal.tensor() + ": " + refusal.found();
  }
  return "taken";
}

std::string zip_of(const std::vector<ZipMember>& members, const std::string& comment = {}) {
  ZipBuilder zip;
  for (const ZipMember& member : members) zip.add(member);
  return zip.finish(comment);
}

template <typename F>
std::string zip_with(F&& change) {
  ZipMember member("a.npy", "some plain bytes");
  change(member);
  return zip_of({member});
}

TEST(ZipDirectory, MembersAreFound) {
  const std::string file = zip_of({{"a.npy", "12345"}, {"b.npy", std::string(1000, 'x'), true}});
  const auto members = members_of(file);
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].name, "a.npy");
  EXPECT_EQ(members[0].method, kStored);
  EXPECT_EQ(file.substr(members[0].data_begin, members[0].stored_bytes), "12345");
  EXPECT_EQ(members[1].method, kDeflated);
  EXPECT_EQ(members[1].plain_bytes, 1000u);
  EXPECT_TRUE(members_of(zip_of({})).empty());
}

TEST(ZipDirectory, EndRecord) {
  const std::string file = zip_of({{"a.npy", "12345"}});
  EXPECT_EQ(refusal_of(file.substr(0, file.size() - 1)), "no zip end record");
  EXPECT_EQ(refusal_of(file + "x"), "no zip end record");
  EXPECT_EQ(refusal_of(""), "no zip end record");
  EXPECT_EQ(refusal_of("PK\3\4"), "no zip end record");
  EXPECT_EQ(members_of(zip_of({{"a.npy", "12345"}}, std::string(65535, 'c'))).size(), 1u);
  // A comment that holds an end record: the last one that fits counts.
  EXPECT_EQ(members_of(zip_of({{"a.npy", "12345"}}, zip_of({}))).size(), 0u);
}

TEST(ZipDirectory, DirectoryWithinTheFile) {
  ZipBuilder zip;
  zip.add({"a.npy", "12345"});
  std::string file = zip.finish();
  const auto with = [&](std::size_t from_end, const std::string& value) {
    std::string changed = file;
    return changed.replace(changed.size() - from_end, value.size(), value);
  };
  EXPECT_EQ(refusal_of(with(10, le(zip.directory.size() + 1, 4))),
            "a zip directory of 52 bytes at offset 40");
  EXPECT_EQ(refusal_of(with(6, le(zip.bytes.size() + 1, 4))),
            "a zip directory of 51 bytes at offset 41");
  EXPECT_EQ(refusal_of(with(6, le(0xfffffffe, 4))),
            "a zip directory of 51 bytes at offset 4294967294");
  EXPECT_EQ(refusal_of(with(6, le(zip.bytes.size() - 1, 4))),
            "no entry where the zip directory should have one");
  EXPECT_EQ(refusal_of(with(10, le(zip.directory.size() - 1, 4))),
            "the end of the zip directory within an entry");
  EXPECT_EQ(refusal_of(with(14, le(2, 2) + le(2, 2))),
            "the end of the zip directory within an entry");
  EXPECT_EQ(refusal_of(with(14, le(0, 2) + le(0, 2))), "51 bytes behind the last zip entry");
  EXPECT_EQ(refusal_of(with(18, le(1, 2))), "a zip in several parts");
  EXPECT_EQ(refusal_of(with(16, le(1, 2))), "a zip in several parts");
  EXPECT_EQ(refusal_of(with(14, le(0, 2))), "a zip in several parts");
}

TEST(ZipDirectory, MembersWithinTheFile) {
  EXPECT_EQ(refusal_of(zip_with([](ZipMember&) {})), "taken");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.offset_error = 1; })),
            "a.npy: no member header where the zip directory says");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.offset_error = 1000; })),
            "a.npy: a member at offset 1000 with 16 bytes");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.stored_bytes = ++m.plain_bytes; })),
            "a.npy: a member at offset 0 with 17 bytes");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) {
              m.zip64 = true;
              m.stored_bytes = m.plain_bytes = ~std::uint64_t{0};
            })),
            "a.npy: a member at offset 0 with 18446744073709551615 bytes");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) {
              m.zip64 = true;
              m.offset_error = ~std::uint64_t{0} - 10;
            })),
            "a.npy: a member at offset 18446744073709551605 with 16 bytes");
}

TEST(ZipDirectory, HeaderAndDirectoryAgree) {
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.local_name = "b.npy"; })),
            "a.npy: the name b.npy in front of its data");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.local_name = ""; })),
            "a.npy: the name  in front of its data");
  std::string file = zip_of({{"a.npy", "12345"}});
  for (const std::size_t at : {8u, 14u, 18u, 22u}) {  // method, checksum, sizes
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ 8);
    EXPECT_EQ(refusal_of(changed), "a.npy: another method, size or checksum in front of its data")
        << at;
  }
}

TEST(ZipDirectory, OverlapAndDuplicates) {
  EXPECT_EQ(refusal_of(zip_of({{"a.npy", "1"}, {"a.npy", "1"}})),
            "a.npy: two members of this name");
  EXPECT_EQ(refusal_of(zip_of({{"a.npy", "1"}, {"A.npy", "1"}})), "taken");
  ZipBuilder zip;  // b lies inside a, which is stored
  ZipBuilder inner;
  inner.add({"b.npy", "1"});
  zip.add({"a.npy", inner.bytes});
  ZipMember b("b.npy", "1");
  b.offset_error = 35 - zip.bytes.size();  // behind a's header
  zip.add(b);
  EXPECT_EQ(refusal_of(zip.finish()), "b.npy: a member that overlaps another");
}

TEST(ZipDirectory, EncryptionPatchesAndOtherMethods) {
  for (const std::uint64_t flag : {1u << 0, 1u << 6, 1u << 13})
    EXPECT_EQ(refusal_of(zip_with([&](ZipMember& m) { m.flags = flag; })),
              "a.npy: an encrypted member");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.flags = 1u << 5; })),
            "a.npy: a member that is a patch");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.flags = 1u << 11 | 1u << 1; })), "taken");
  for (const std::uint64_t method : {1u, 9u, 12u, 14u, 93u, 99u, 65535u})
    EXPECT_EQ(refusal_of(zip_with([&](ZipMember& m) { m.method = method; })),
              "a.npy: zip method " + std::to_string(method));
}

TEST(ZipDirectory, SizesThatNoDeflateGives) {
  ZipMember stored("a.npy", "12345");
  stored.plain_bytes = 6;
  EXPECT_EQ(refusal_of(zip_of({stored})), "a.npy: 6 bytes out of 5");
  ZipMember packed("a.npy", std::string(100000, 'x'), true);
  packed.plain_bytes = packed.stored_bytes * 1032;
  EXPECT_EQ(refusal_of(zip_of({packed})), "taken");
  ++packed.plain_bytes;
  EXPECT_TRUE(refusal_of(zip_of({packed})).starts_with("a.npy: "));
}

TEST(ZipDirectory, Zip64DescriptorsCommentsAndExtraFields) {
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.zip64 = true; })), "taken");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.sizes_behind = true; })), "taken");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) { m.zip64 = m.sizes_behind = true; })), "taken");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) {
              m.comment = "note";
              m.entry_extra = le(0x5455, 2) + le(5, 2) + "12345";
              m.local_extra = "\xff";  // less than a field
            })),
            "taken");
  EXPECT_EQ(refusal_of(zip_with([](ZipMember& m) {  // a field longer than the rest is no field
              m.entry_extra = le(1, 2) + le(100, 2);
              m.stored_bytes = m.plain_bytes = 0xffffffff;
            })),
            "a.npy: no zip64 field for a size or offset");
  ZipBuilder zip;
  zip.add({"a.npy", "12345"});
  EXPECT_EQ(members_of(zip.finish64()).size(), 1u);
  std::string file = zip.finish64();
  std::string no_end = file;
  no_end[file.size() - 22 - 20 - 56] = 'x';
  EXPECT_EQ(refusal_of(no_end), "no zip64 end record where its locator says");
  std::string far = file;
  far.replace(file.size() - 22 - 12, 8, le(~std::uint64_t{0}, 8));
  EXPECT_EQ(refusal_of(far), "a zip64 end record at offset 18446744073709551615");
  std::string many = file;
  many.replace(file.size() - 22 - 20 - 56 + 24, 16,
               le(kMaxMembers + 1, 8) + le(kMaxMembers + 1, 8));
  EXPECT_EQ(refusal_of(many), "a zip directory of 65537 members and 51 bytes");
}

}  // namespace
}  // namespace headwise::io::zip
