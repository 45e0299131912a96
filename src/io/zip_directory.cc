#include "io/zip_directory.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "core/checked.h"
#include "io/little_endian.h"
#include "io/refusal.h"

namespace headwise::io::zip {
namespace {

std::uint64_t sum(std::uint64_t a, std::uint64_t b, const char* what, const std::string& member) {
  const auto total = core::checked_add(a, b);
  if (!total) throw Refusal(std::string(what) + " past the end", "a place in the file", member);
  return *total;
}

std::vector<std::byte> read(const ByteSource& file, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> block(bytes);  // the callers have compared `bytes` with the file or 64 KiB
  file.read(offset, block);
  return block;
}

struct Directory {
  std::uint64_t begin = 0, bytes = 0, entries = 0;
};

// The end record is the last one whose comment ends where the file does.
std::optional<std::uint64_t> find_end(std::span<const std::byte> tail) {
  for (std::uint64_t left = kEndBytes; left <= tail.size(); ++left) {
    const auto record = tail.last(left);
    if (little_endian<std::uint32_t>(record, 0) != kEndSignature) continue;
    if (left - kEndBytes == little_endian<std::uint16_t>(record, 20)) return tail.size() - left;
  }
  return std::nullopt;
}

std::optional<Directory> find_zip64(const ByteSource& file, std::uint64_t end_at) {
  if (end_at < kLocator64Bytes) return std::nullopt;
  const auto locator = read(file, end_at - kLocator64Bytes, kLocator64Bytes);
  if (little_endian<std::uint32_t>(locator, 0) != kLocator64Signature) return std::nullopt;
  const auto at = little_endian<std::uint64_t>(locator, 8);
  const std::uint64_t limit = end_at - kLocator64Bytes;
  if (at > limit || limit - at < kEnd64Bytes)
    throw Refusal("a zip64 end record at offset " + std::to_string(at),
                  "one in front of its locator");
  const auto record = read(file, at, kEnd64Bytes);
  if (little_endian<std::uint32_t>(record, 0) != kEnd64Signature)
    throw Refusal("no zip64 end record where its locator says", "one");
  const auto disk = little_endian<std::uint32_t>(record, 16);
  const auto directory_disk = little_endian<std::uint32_t>(record, 20);
  const auto here = little_endian<std::uint64_t>(record, 24);
  const Directory directory{little_endian<std::uint64_t>(record, 48),
                            little_endian<std::uint64_t>(record, 40),
                            little_endian<std::uint64_t>(record, 32)};
  if (disk != 0 || directory_disk != 0 || here != directory.entries)
    throw Refusal("a zip in several parts", "one file");
  return directory;
}

Directory find_directory(const ByteSource& file) {
  const std::uint64_t tail_bytes = std::min(file.size(), kEndBytes + kMaxComment);
  const auto tail = read(file, file.size() - tail_bytes, tail_bytes);
  const auto in_tail = find_end(tail);
  if (!in_tail) throw Refusal("no zip end record", "the directory of a whole .npz file");
  const auto record = std::span(tail).subspan(*in_tail);
  const std::uint64_t end_at = file.size() - (tail_bytes - *in_tail);
  const auto disk = little_endian<std::uint16_t>(record, 4);
  const auto directory_disk = little_endian<std::uint16_t>(record, 6);
  const auto here = little_endian<std::uint16_t>(record, 8);
  Directory directory{little_endian<std::uint32_t>(record, 16),
                      little_endian<std::uint32_t>(record, 12),
                      little_endian<std::uint16_t>(record, 10)};
  const bool in_64 =
      directory.begin == kIn64 || directory.bytes == kIn64 || directory.entries == kIn64Short;
  const auto zip64 = in_64 ? find_zip64(file, end_at) : std::nullopt;
  if (zip64)
    directory = *zip64;
  else if (disk != 0 || directory_disk != 0 || here != directory.entries)
    throw Refusal("a zip in several parts", "one file");
  const auto end = core::checked_add(directory.begin, directory.bytes);
  if (!end || *end > end_at)
    throw Refusal("a zip directory of " + std::to_string(directory.bytes) + " bytes at offset " +
                      std::to_string(directory.begin),
                  "one in front of the end record at " + std::to_string(end_at));
  if (directory.bytes > kMaxDirectory || directory.entries > kMaxMembers)
    throw Refusal(
        "a zip directory of " + std::to_string(directory.entries) + " members and " +
            std::to_string(directory.bytes) + " bytes",
        "at most " + std::to_string(kMaxMembers) + " and " + std::to_string(kMaxDirectory));
  return directory;
}

// The 64-bit numbers of a zip64 extra field, in turn.
class Zip64Extra {
 public:
  explicit Zip64Extra(std::span<const std::byte> extra) {
    while (extra.size() >= kExtraHeadBytes) {
      const auto id = little_endian<std::uint16_t>(extra, 0);
      const std::size_t bytes = little_endian<std::uint16_t>(extra, 2);
      extra = extra.subspan(kExtraHeadBytes);
      if (bytes > extra.size()) return;  // not a field; tools put anything here
      if (id == kExtraZip64) {
        numbers_ = extra.first(bytes);
        return;
      }
      extra = extra.subspan(bytes);
    }
  }

  // `value`, or the next 64-bit number when it says so.
  std::uint64_t resolve(std::uint32_t value, const std::string& member) {
    if (value != kIn64) return value;
    if (numbers_.size() < sizeof(std::uint64_t))
      throw Refusal("no zip64 field for a size or offset", "one", member);
    const auto number = little_endian<std::uint64_t>(numbers_, 0);
    numbers_ = numbers_.subspan(sizeof number);
    return number;
  }

 private:
  std::span<const std::byte> numbers_;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_flags(std::uint16_t flags, std::uint16_t method, const std::string& member) {
  if (flags & (kEncrypted | kStrongEncryption | kMaskedHeader))
    throw Refusal("an encrypted member", "a plain one", member);
  if (flags & kPatch) throw Refusal("a member that is a patch", "a whole one", member);
  if (method != kStored && method != kDeflated)
    throw Refusal("zip method " + std::to_string(method), "0 (stored) or 8 (deflated)", member);
}

// Takes one entry off the front of the directory.
Member take_entry(std::span<const std::byte>& directory) {
  const auto refuse_end = [] {
    throw Refusal("the end of the zip directory within an entry", "the whole entry");
  };
  if (directory.size() < kEntryBytes) refuse_end();
  if (little_endian<std::uint32_t>(directory, 0) != kEntrySignature)
    throw Refusal("no entry where the zip directory should have one", "PK\\x01\\x02");
  const std::size_t name_bytes = little_endian<std::uint16_t>(directory, 28);
  const std::size_t extra_bytes = little_endian<std::uint16_t>(directory, 30);
  const std::size_t comment_bytes = little_endian<std::uint16_t>(directory, 32);
  const auto fixed = directory.first(kEntryBytes);
  auto rest = directory.subspan(kEntryBytes);
  if (rest.size() < name_bytes + extra_bytes + comment_bytes) refuse_end();  // at most 3 * 65535
  Member member;
  member.name = text_of(rest.first(name_bytes));
  Zip64Extra zip64(rest.subspan(name_bytes, extra_bytes));
  directory = rest.subspan(name_bytes + extra_bytes + comment_bytes);
  member.method = little_endian<std::uint16_t>(fixed, 10);
  check_flags(little_endian<std::uint16_t>(fixed, 8), member.method, member.name);
  member.crc = little_endian<std::uint32_t>(fixed, 16);
  member.plain_bytes = zip64.resolve(little_endian<std::uint32_t>(fixed, 24), member.name);
  member.stored_bytes = zip64.resolve(little_endian<std::uint32_t>(fixed, 20), member.name);
  member.header_begin = zip64.resolve(little_endian<std::uint32_t>(fixed, 42), member.name);
  return member;
}

void check_sizes(const Member& member) {
  // 258 bytes from 2 bits is the most that deflate can do.
  constexpr std::uint64_t kMaxRatio = 1032;
  const auto most = member.method == kStored ? std::optional(member.stored_bytes)
                                             : core::checked_mul(member.stored_bytes, kMaxRatio);
  const bool fits = !most || member.plain_bytes <= *most;
  if (!fits || (member.method == kStored && member.plain_bytes != member.stored_bytes))
    throw Refusal(
        std::to_string(member.plain_bytes) + " bytes out of " + std::to_string(member.stored_bytes),
        member.method == kStored ? "the same number for a stored member"
                                 : "at most 1032 times as many",
        member.name);
}

// The header in front of the member's data says the same as the directory.
void check_local_header(const ByteSource& file, Member& member, std::uint64_t limit) {
  const auto refuse_place = [&] {
    throw Refusal("a member at offset " + std::to_string(member.header_begin) + " with " +
                      std::to_string(member.stored_bytes) + " bytes",
                  "one in front of the directory at " + std::to_string(limit), member.name);
  };
  if (limit < kLocalBytes || member.header_begin > limit - kLocalBytes) refuse_place();
  const auto fixed = read(file, member.header_begin, kLocalBytes);
  if (little_endian<std::uint32_t>(fixed, 0) != kLocalSignature)
    throw Refusal("no member header where the zip directory says", "PK\\x03\\x04", member.name);
  const std::uint64_t name_bytes = little_endian<std::uint16_t>(fixed, 26);
  const std::uint64_t extra_bytes = little_endian<std::uint16_t>(fixed, 28);
  const std::uint64_t name_begin = member.header_begin + kLocalBytes;  // at most limit
  member.data_begin = sum(name_begin, name_bytes + extra_bytes, "a member", member.name);
  const auto end = core::checked_add(member.data_begin, member.stored_bytes);
  if (!end || *end > limit) refuse_place();
  const auto block = read(file, name_begin, name_bytes + extra_bytes);
  const std::string name = text_of(std::span(block).first(name_bytes));
  if (name != member.name)
    throw Refusal("the name " + name + " in front of its data", "the directory's", member.name);
  const auto flags = little_endian<std::uint16_t>(fixed, 6);
  const auto method = little_endian<std::uint16_t>(fixed, 8);
  check_flags(flags, method, member.name);
  bool same = method == member.method;
  if ((flags & kSizesBehindData) == 0) {
    Zip64Extra zip64{std::span(block).subspan(name_bytes)};
    same = same && little_endian<std::uint32_t>(fixed, 14) == member.crc;
    same =
        same && zip64.resolve(little_endian<std::uint32_t>(fixed, 22), name) == member.plain_bytes;
    same =
        same && zip64.resolve(little_endian<std::uint32_t>(fixed, 18), name) == member.stored_bytes;
  }
  if (!same)
    throw Refusal("another method, size or checksum in front of its data", "the directory's",
                  member.name);
}

void check_no_overlap(const std::vector<Member>& members) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return members[a].header_begin < members[b].header_begin;
  });
  std::uint64_t filled = 0;
  for (const std::size_t i : order) {
    if (members[i].header_begin < filled)
      throw Refusal("a member that overlaps another", "members one after the other",
                    members[i].name);
    filled = sum(members[i].data_begin, members[i].stored_bytes, "a member", members[i].name);
  }
}

}  // namespace

bool has_magic(std::span<const std::byte> start) {
  if (start.size() < sizeof(std::uint32_t)) return false;
  const auto signature = little_endian<std::uint32_t>(start, 0);
  return signature == kLocalSignature || signature == kEndSignature;  // the latter: no members
}

std::vector<Member> read_directory(const ByteSource& file) {
  const Directory directory = find_directory(file);
  const auto block = read(file, directory.begin, directory.bytes);
  std::span<const std::byte> left = block;
  std::vector<Member> members;
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    Member member = take_entry(left);
    check_sizes(member);
    check_local_header(file, member, directory.begin);
    if (!names.insert(member.name).second)
      throw Refusal("two members of this name", "each name once", member.name);
    members.push_back(std::move(member));
  }
  if (!left.empty())
    throw Refusal(std::to_string(left.size()) + " bytes behind the last zip entry",
                  std::to_string(directory.entries) + " entries and nothing else");
  check_no_overlap(members);
  return members;
}

}  // namespace headwise::io::zip
