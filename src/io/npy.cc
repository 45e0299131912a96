// bfloat16 has no name of its own in .npy: NumPy with ml_dtypes writes it as two raw bytes, '<V2'.
// So do we, and take '<V2' (and the plain name 'bfloat16') for bf16 when reading.
#include "io/npy.h"

#include <array>
#include <charconv>
#include <limits>

#include "core/checked.h"
#include "io/little_endian.h"
#include "io/npy_dict.h"
#include "io/refusal.h"
#include "io/utf8.h"

namespace headwise::io::npy {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kLengthAt = 8;  // behind magic and version
constexpr std::uint64_t kAlignment = 64;

struct Kind {
  char letter;
  std::uint64_t unit;      // bytes per count in the name: U3 has 12
  std::string_view sizes;  // the counts that exist, as digits or "*" for any
};
constexpr std::array<Kind, 10> kKinds = {{{'f', 1, "2 4 8 12 16"},
                                          {'i', 1, "1 2 4 8"},
                                          {'u', 1, "1 2 4 8"},
                                          {'b', 1, "1"},
                                          {'c', 1, "8 16 24 32"},
                                          {'M', 1, "8"},
                                          {'m', 1, "8"},
                                          {'V', 1, "*"},
                                          {'S', 1, "*"},
                                          {'U', 4, "*"}}};

struct Typed {
  std::string_view name;  // without byte order
  DType type;
};
constexpr std::array<Typed, 13> kTypes = {{{"f4", DType::f32},
                                           {"f8", DType::f64},
                                           {"V2", DType::bf16},
                                           {"f2", DType::f16},
                                           {"b1", DType::boolean},
                                           {"u1", DType::u8},
                                           {"i1", DType::i8},
                                           {"u2", DType::u16},
                                           {"i2", DType::i16},
                                           {"u4", DType::u32},
                                           {"i4", DType::i32},
                                           {"u8", DType::u64},
                                           {"i8", DType::i64}}};

[[noreturn]] void refuse_dtype(std::string_view descr) {
  throw Refusal("dtype '" + std::string(descr) + "'", "a NumPy element type such as '<f4'");
}

bool is_listed(std::string_view sizes, std::string_view digits) {
  if (sizes == "*") return true;
  while (!sizes.empty()) {
    const std::size_t blank = std::min(sizes.find(' '), sizes.size());
    if (sizes.substr(0, blank) == digits) return true;
    sizes.remove_prefix(std::min(blank + 1, sizes.size()));
  }
  return false;
}

std::uint64_t parse_item_bytes(std::string_view descr, std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (name[0] != kind.letter) continue;
    std::string_view digits = name.substr(1);
    if (kind.letter == 'M' || kind.letter == 'm')  // "M8[ns]": the unit is not ours to judge
      digits = digits.substr(0, digits.find('['));
    std::uint64_t count = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    if (!whole || !is_listed(kind.sizes, digits) || count > std::numeric_limits<int>::max())
      refuse_dtype(descr);
    return count * kind.unit;  // at most 2^33
  }
  refuse_dtype(descr);
}

void parse_dtype(Contents& contents) {
  std::string_view name = contents.descr;
  if (name == "bfloat16") name = "V2";
  char order = '=';
  if (!name.empty() && std::string_view("<>|=").find(name[0]) != std::string_view::npos) {
    order = name[0];
    name.remove_prefix(1);
  }
  if (name == "?") name = "b1";
  if (name.starts_with('O'))
    throw Refusal("Python objects (dtype '" + contents.descr + "')",
                  "numbers: objects are pickled and could run code");
  if (name.empty()) refuse_dtype(contents.descr);
  contents.item_bytes = parse_item_bytes(contents.descr, name);
  contents.big_endian = order == '>' && contents.item_bytes > 1;
  for (const Typed& typed : kTypes)
    if (typed.name == name) contents.type = typed.type;
}

std::uint64_t bytes_of(const Contents& contents) {
  std::optional<std::uint64_t> bytes = 1;
  for (const std::uint64_t n : contents.shape) {
    bytes = core::checked_mul(*bytes, n);
    if (!bytes) break;
  }
  if (bytes) bytes = core::checked_mul(*bytes, contents.item_bytes);
  if (!bytes) throw Refusal("a shape whose size overflows", "at most 2^64 - 1 bytes");
  return *bytes;
}

}  // namespace

bool has_magic(std::span<const std::byte> start) {
  return start.size() >= kMagicBytes && std::memcmp(start.data(), kMagic.data(), kMagicBytes) == 0;
}

std::uint64_t header_bytes(std::span<const std::byte> start, std::uint64_t file_size) {
  if (!has_magic(start)) throw Refusal("no .npy magic", "\\x93NUMPY as first bytes");
  const auto refuse_end = [&] {
    throw Refusal("a file of " + std::to_string(file_size) + " bytes", "the whole .npy header");
  };
  if (start.size() < kLengthAt + sizeof(std::uint16_t)) refuse_end();
  const auto major = static_cast<unsigned>(start[6]), minor = static_cast<unsigned>(start[7]);
  if (major < 1 || major > 3 || minor != 0)
    throw Refusal(".npy version " + std::to_string(major) + "." + std::to_string(minor),
                  "1.0, 2.0 or 3.0");
  const std::uint64_t length_bytes = major == 1 ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
  const std::uint64_t prefix = kLengthAt + length_bytes;
  if (start.size() < prefix) refuse_end();
  const std::uint64_t length = major == 1 ? little_endian<std::uint16_t>(start, kLengthAt)
                                          : little_endian<std::uint32_t>(start, kLengthAt);
  if (length > kMaxHeader)
    throw Refusal("an .npy header of " + std::to_string(length) + " bytes",
                  "at most " + std::to_string(kMaxHeader));
  const std::uint64_t end = prefix + length;  // at most 2^20 + 12
  if (end > file_size)
    throw Refusal(
        "an .npy header of " + std::to_string(length) + " bytes in " + std::to_string(file_size),
        "the whole header");
  return end;
}

Contents parse(std::span<const std::byte> start, std::uint64_t file_size) {
  Contents contents;
  contents.data_begin = header_bytes(start, file_size);
  if (start.size() < contents.data_begin)
    throw Refusal("the end of the file within the header", "the whole header");
  const std::uint64_t prefix = static_cast<unsigned>(start[6]) == 1 ? 10 : 12;
  const auto header = start.first(contents.data_begin).subspan(prefix);
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  Dict dict = parse_dict(text);
  contents.descr = std::move(dict.descr);
  contents.shape = std::move(dict.shape);
  contents.fortran_order = dict.fortran_order;
  parse_dtype(contents);
  contents.data_bytes = bytes_of(contents);
  if (contents.data_bytes > file_size - contents.data_begin)
    throw Refusal(std::to_string(file_size - contents.data_begin) + " bytes of data",
                  std::to_string(contents.data_bytes) + " for its dtype and shape");
  return contents;
}

std::string write_header(DType type, std::span<const std::size_t> shape) {
  std::string text = "{'descr': '";
  text += size_of(type) == 1 ? '|' : '<';
  for (const Typed& typed : kTypes)
    if (typed.type == type) text += typed.name;
  text += "', 'fortran_order': False, 'shape': (";
  for (const std::size_t n : shape) text += std::to_string(n) + (shape.size() == 1 ? "," : ", ");
  text += "), }";
  constexpr std::uint64_t kPrefix = kLengthAt + sizeof(std::uint16_t);  // version 1.0
  while ((kPrefix + text.size() + 1) % kAlignment != 0) text += ' ';
  text += '\n';
  std::string header(kMagic);
  header +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xffu), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace headwise::io::npy
