// Writes .npz as numpy.savez does: stored members, no compression. Padding in each member's header
// makes its elements begin at a multiple of 64 bytes, so that they can be mapped and used as they
// lie.
#include <zlib.h>

#include <string>
#include <vector>

#include "core/check.h"
#include "headwise/io.h"
#include "io/npy.h"
#include "io/writing.h"
#include "io/zip_directory.h"

namespace headwise {
namespace {

using namespace io::zip;  // the format's numbers

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint16_t kVersion = 45;           // of the format: zip64
constexpr std::uint32_t kDate1980 = 0x00210000;  // 1 January 1980, 00:00: equal input, equal file

std::string le(std::uint64_t value, unsigned bytes) {
  std::string text;
  for (; bytes > 0; --bytes, value >>= 8) text += static_cast<char>(value & 0xffu);
  return text;
}

struct Written {
  std::string name;
  std::uint32_t crc = 0;
  std::uint64_t header_begin = 0, bytes = 0;
};

// Sizes always in 64 bits as well: one form for small and large members.
std::string zip64_field(std::initializer_list<std::uint64_t> numbers) {
  std::string field = le(kExtraZip64, 2) + le(numbers.size() << 3, 2);
  for (const std::uint64_t number : numbers) field += le(number, 8);
  return field;
}

// What local header and directory entry share, from "version needed" to the name's length.
std::string common_fields(const Written& member) {
  return le(kVersion, 2) + le(kUtf8Name, 2) + le(0 /* stored */, 2) + le(kDate1980, 4) +
         le(member.crc, 4) + le(kIn64, 4) + le(kIn64, 4) + le(member.name.size(), 2);
}

std::string local_header(const Written& member, std::uint64_t npy_header_bytes) {
  std::string extra = zip64_field({member.bytes, member.bytes});
  const std::uint64_t begin = member.header_begin + kLocalBytes + member.name.size() +
                              extra.size() + kExtraHeadBytes + npy_header_bytes;
  const std::uint64_t padding = (kAlignment - begin % kAlignment) % kAlignment;
  extra += le(kExtraPadding, 2) + le(padding, 2) + std::string(padding, '\0');
  return le(kLocalSignature, 4) + common_fields(member) + le(extra.size(), 2) + member.name + extra;
}

std::string directory_entry(const Written& member) {
  const std::string extra = zip64_field({member.bytes, member.bytes, member.header_begin});
  return le(kEntrySignature, 4) + le(kVersion, 2) + common_fields(member) + le(extra.size(), 2) +
         le(0, 2) + le(0, 2) + le(0, 2) + le(0, 4) +  // comment, disk, attributes
         le(kIn64, 4) + member.name + extra;
}

// The directory's entries, place and size; in 64 bits as well where they need it.
std::string end_records(std::uint64_t entries, std::uint64_t begin, std::uint64_t bytes) {
  const bool in_64 = entries >= kIn64Short || begin + bytes >= kIn64;
  const std::string end64 = le(kEnd64Signature, 4) + le(kEnd64Bytes - 12, 8) + le(kVersion, 2) +
                            le(kVersion, 2) + le(0, 4) + le(0, 4) + le(entries, 8) +
                            le(entries, 8) + le(bytes, 8) + le(begin, 8);
  const std::string locator =
      le(kLocator64Signature, 4) + le(0, 4) + le(begin + bytes, 8) + le(1, 4);
  const std::uint64_t entries16 = in_64 ? kIn64Short : entries;
  return (in_64 ? end64 + locator : std::string()) + le(kEndSignature, 4) + le(0, 2) + le(0, 2) +
         le(entries16, 2) + le(entries16, 2) + le(in_64 ? kIn64 : bytes, 4) +
         le(in_64 ? kIn64 : begin, 4) + le(0, 2);
}

std::uint32_t crc_of(std::span<const std::byte> header, std::span<const std::byte> elements) {
  const auto add = [](uLong crc, std::span<const std::byte> bytes) {
    return crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  };
  const uLong crc = add(crc32_z(0, nullptr, 0), header);
  return static_cast<std::uint32_t>(elements.empty() ? crc : add(crc, elements));
}

}  // namespace

void save_npz(const std::string& path, std::span<const NamedView> tensors) {
  io::check_tensors(tensors);
  if (tensors.size() > kMaxMembers)
    core::throw_argument("tensors", std::to_string(tensors.size()) + " tensors",
                         "at most " + std::to_string(kMaxMembers));
  constexpr std::size_t kMaxName = 0xffff - 4;  // with ".npy"
  for (const NamedView& tensor : tensors)
    if (tensor.name.size() > kMaxName)
      core::throw_argument(io::argument_name(tensor),
                           "a name of " + std::to_string(tensor.name.size()) + " bytes",
                           "at most " + std::to_string(kMaxName));
  io::write_file(path, [&](io::OutputFile& out) {
    std::uint64_t offset = 0;
    const auto write = [&](std::span<const std::byte> bytes) {
      out.write(bytes);
      offset += bytes.size();
    };
    const auto write_text = [&](const std::string& text) { write(std::as_bytes(std::span(text))); };
    std::string directory;
    for (const NamedView& tensor : tensors) {
      const ConstTensorView& view = tensor.view;
      const std::string header =
          io::npy::write_header(view.dtype, {view.shape.begin(), view.shape.size()});
      const io::Elements elements(view);
      const Written member{tensor.name + ".npy",
                           crc_of(std::as_bytes(std::span(header)), elements.bytes()), offset,
                           header.size() + elements.bytes().size()};
      write_text(local_header(member, header.size()));
      write_text(header);
      write(elements.bytes());
      directory += directory_entry(member);
    }
    const std::uint64_t begin = offset;
    write_text(directory);
    write_text(end_records(tensors.size(), begin, directory.size()));
  });
}

}  // namespace headwise
