#include "io/npz.h"

#include <zlib.h>

#include <algorithm>

#include "io/inflate.h"
#include "io/refusal.h"

namespace headwise::io::npz {
namespace {

constexpr std::string_view kSuffix = ".npy";

std::string array_name(const std::string& member) {
  if (!member.ends_with(kSuffix))
    throw Refusal("a member that is no array",
                  "a .npz file, with members that end in .npy (PyTorch's own files are zip files "
                  "of pickles: save as safetensors)",
                  member);
  return member.substr(0, member.size() - kSuffix.size());
}

// The first bytes of a member, whichever way it is kept.
class MemberStart {
 public:
  MemberStart(const ByteSource& file, const zip::Member& member) : file_(file), member_(member) {
    if (member.method == zip::kDeflated) inflater_ = std::make_unique<Inflater>(file, member);
  }

  // At least `bytes`, or all there are.
  std::span<const std::byte> grow_to(std::uint64_t bytes) {
    const std::size_t before = start_.size();
    const std::uint64_t wanted = std::min(bytes, member_.plain_bytes);
    if (wanted <= before) return start_;
    start_.resize(wanted);
    const auto room = std::span(start_).subspan(before);
    if (!inflater_)
      file_.read(member_.data_begin + before, room);  // within the member
    else if (inflater_->read(room) != room.size())
      throw Refusal("the end of the deflated data in the .npy header", "more of it", member_.name);
    return start_;
  }

 private:
  const ByteSource& file_;
  const zip::Member& member_;
  std::unique_ptr<Inflater> inflater_;
  std::vector<std::byte> start_;
};

npy::Contents parse_member(const ByteSource& file, const zip::Member& member,
                           std::uint64_t& headers) {
  MemberStart start(file, member);
  const std::uint64_t header =
      npy::header_bytes(start.grow_to(npy::kMaxPrefix), member.plain_bytes);
  headers += header;  // each at most 2^20 + 12, and 2^16 of them
  if (headers > kMaxHeaders)
    throw Refusal("more than " + std::to_string(kMaxHeaders) + " bytes of .npy headers", "less");
  npy::Contents contents = npy::parse(start.grow_to(header), member.plain_bytes);
  if (contents.data_bytes != member.plain_bytes - contents.data_begin)
    throw Refusal("a member with " + std::to_string(member.plain_bytes - contents.data_begin) +
                      " bytes of data",
                  std::to_string(contents.data_bytes) + " for its dtype and shape");
  return contents;
}

std::uint32_t crc_of(std::uint32_t crc, std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

void check_crc(std::uint32_t found, const Array& array) {
  if (found != array.member.crc)
    throw Refusal("damaged data (its checksum is " + std::to_string(found) + ")",
                  std::to_string(array.member.crc), array.name);
}

}  // namespace

std::vector<Array> parse(const ByteSource& file) {
  std::vector<Array> arrays;
  std::uint64_t headers = 0;
  for (zip::Member& member : zip::read_directory(file)) {
    std::string name = array_name(member.name);
    try {
      npy::Contents contents = parse_member(file, member, headers);
      arrays.push_back({std::move(name), std::move(member), std::move(contents)});
    } catch (const Refusal& refusal) {  // .npy knows no names
      throw Refusal(refusal.found(), refusal.expected(), name);
    }
  }
  return arrays;
}

void check_stored(std::span<const std::byte> file, const Array& array) {
  check_crc(crc_of(0, file.subspan(array.member.data_begin, array.member.stored_bytes)), array);
}

Buffer inflate_elements(const ByteSource& file, const Array& array) {
  Inflater inflater(file, array.member);
  std::vector<std::byte> header(array.contents.data_begin);
  Buffer elements(array.contents.data_bytes);
  const std::span<std::byte> room(elements.data(), elements.size());
  if (inflater.read(header) != header.size() || inflater.read(room) != room.size())
    throw Refusal("the end of the deflated data", "the elements", array.name);
  if (!inflater.at_end())
    throw Refusal("more data than the zip directory says",
                  std::to_string(array.member.plain_bytes) + " bytes", array.name);
  check_crc(crc_of(crc_of(0, header), room), array);
  return elements;
}

}  // namespace headwise::io::npz
