// Zip and .npy files built field by field, so that tests and fuzzers can have any field wrong.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace headwise::test {

// `value` in `bytes` bytes, lowest first.
inline std::string le(std::uint64_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>((value >> (8 * i)) & 0xffu);
  return text;
}

inline std::uint32_t crc_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

inline std::string deflated(const std::string& bytes) {
  z_stream stream{};
  std::string out(bytes.size() + 1000, '\0');
  if (deflateInit2(&stream, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// An .npy file of `values`, version 1.0.
inline std::string npy_of(std::string_view dict, std::string_view data) {
  return "\x93NUMPY" + le(1, 2) + le(dict.size(), 2) + std::string(dict) + std::string(data);
}
inline std::string floats_npy(std::size_t n) {
  const std::string dict =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(n) + ",), }\n";
  return npy_of(dict, std::string(4 * n, '\1'));
}

// One member of a zip file, each field free to be wrong.
struct ZipMember {
  ZipMember(std::string the_name, const std::string& plain, bool deflate = false)
      : name(the_name),
        local_name(std::move(the_name)),
        stored(deflate ? deflated(plain) : plain),
        method(deflate ? 8 : 0),
        crc(crc_of(plain)),
        plain_bytes(plain.size()),
        stored_bytes(stored.size()) {}

  std::string name, local_name, stored;
  std::uint64_t method, crc, plain_bytes, stored_bytes;
  std::uint64_t flags = 0;
  std::string entry_extra, local_extra, comment;
  bool sizes_behind = false;  // a data descriptor
  bool zip64 = false;         // sizes and offset in 64 bits only
  std::uint64_t offset_error = 0;
};

class ZipBuilder {
 public:
  void add(const ZipMember& m) {
    const std::uint64_t flags = m.flags | (m.sizes_behind ? 8 : 0);
    const std::string crc_and_sizes =
        m.zip64 ? le(m.crc, 4) + le(0xffffffff, 4) + le(0xffffffff, 4)
                : le(m.crc, 4) + le(m.stored_bytes, 4) + le(m.plain_bytes, 4);
    const std::uint64_t offset = bytes.size() + m.offset_error;
    std::string local_extra = m.local_extra, entry_extra = m.entry_extra;
    if (m.zip64) local_extra += le(1, 2) + le(16, 2) + le(m.plain_bytes, 8) + le(m.stored_bytes, 8);
    if (m.zip64)
      entry_extra +=
          le(1, 2) + le(24, 2) + le(m.plain_bytes, 8) + le(m.stored_bytes, 8) + le(offset, 8);
    bytes += "PK\3\4" + le(20, 2) + le(flags, 2) + le(m.method, 2) + le(0, 4) +
             (m.sizes_behind ? std::string(12, '\0') : crc_and_sizes) + le(m.local_name.size(), 2) +
             le(local_extra.size(), 2) + m.local_name + local_extra + m.stored;
    if (m.sizes_behind) bytes += "PK\7\x08" + crc_and_sizes;
    directory += "PK\1\2" + le(20, 2) + le(20, 2) + le(flags, 2) + le(m.method, 2) + le(0, 4) +
                 crc_and_sizes + le(m.name.size(), 2) + le(entry_extra.size(), 2) +
                 le(m.comment.size(), 2) + le(0, 8) + le(m.zip64 ? 0xffffffff : offset, 4) +
                 m.name + entry_extra + m.comment;
    ++entries;
  }
  // The file with its end record, which says what is given here.
  std::string finish(const std::string& comment = {}) const {
    return bytes + directory + "PK\5\6" + le(0, 4) + le(entries, 2) + le(entries, 2) +
           le(directory.size(), 4) + le(bytes.size(), 4) + le(comment.size(), 2) + comment;
  }
  std::string finish64() const {
    const std::uint64_t end = bytes.size() + directory.size();
    return bytes + directory + "PK\6\6" + le(44, 8) + le(45, 2) + le(45, 2) + le(0, 8) +
           le(entries, 8) + le(entries, 8) + le(directory.size(), 8) + le(bytes.size(), 8) +
           "PK\6\7" + le(0, 4) + le(end, 8) + le(1, 4) + "PK\5\6" + le(0, 4) + le(0xffff, 2) +
           le(0xffff, 2) + le(0xffffffff, 4) + le(0xffffffff, 4) + le(0, 2);
  }

  std::string bytes, directory;
  std::uint64_t entries = 0;
};

}  // namespace headwise::test
