#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "core/checked.h"
#include "headwise/io.h"
#include "io/json_events.h"
#include "io/little_endian.h"
#include "io/refusal.h"

namespace headwise::io::safetensors {
namespace {

using Kind = JsonScalar::Kind;

constexpr std::array<DTypeFacts, 22> kDTypes = {{
    {"F32", 32, DType::f32},
    {"F64", 64, DType::f64},
    {"BF16", 16, DType::bf16},
    {"F16", 16, DType::f16},
    {"BOOL", 8, DType::boolean},
    {"U8", 8, DType::u8},
    {"I8", 8, DType::i8},
    {"U16", 16, DType::u16},
    {"I16", 16, DType::i16},
    {"U32", 32, DType::u32},
    {"I32", 32, DType::i32},
    {"U64", 64, DType::u64},
    {"I64", 64, DType::i64},
    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
    {"C64", 64, std::nullopt},
}};

constexpr std::uint64_t kMaxDim = std::numeric_limits<std::int64_t>::max();

// Seven bits a byte, lowest first; the top bit says that more follow.
void append_number(std::string& pool, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) pool += static_cast<char>(0x80u | (value & 0x7fu));
  pool += static_cast<char>(value);
}

// Strings of the metadata as they come, so that a million of them cost what they have in the file.
class StringPool {
 public:
  void add(std::string_view text) {
    append_number(bytes_, text.size());
    bytes_ += text;
  }
  // Keys and values in turn; the last of equal keys counts.
  std::map<std::string, std::string> to_map() const;

 private:
  std::string bytes_;
};

std::uint64_t take_number(std::string_view& pool) {
  std::uint64_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(pool.front());
    pool.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7fu) << shift;
    if (byte < 0x80) return value;
  }
}

std::map<std::string, std::string> StringPool::to_map() const {
  std::map<std::string, std::string> strings;
  std::string_view left = bytes_;
  const auto take = [&left] {
    const std::uint64_t size = take_number(left);
    std::string text(left.substr(0, size));
    left.remove_prefix(size);
    return text;
  };
  while (!left.empty()) {
    std::string key = take();
    strings[std::move(key)] = take();
  }
  return strings;
}

// Fills a Contents from the header's events. Depth 1 is the header's object, 2 a tensor or the
// metadata, 3 a shape or a pair of offsets.
class HeaderHandler final : public JsonHandler {
 public:
  HeaderHandler(Contents& contents, std::uint64_t data_bytes)
      : contents_(contents), data_bytes_(data_bytes) {}

  void start(bool is_object) override {
    if (depth_ == 0 && !is_object) throw Refusal("an array", "a JSON object as header");
    if (depth_ == 1) start_entry(is_object);
    if (depth_ == 2) start_field(is_object);
    if (depth_ == 3 && is_numbers())
      throw Refusal(label() + " with an array or object in it", label() + " with numbers", name_);
    if (depth_ >= 2) count_part();
    ++depth_;
  }

  void end(bool) override {
    --depth_;
    if (depth_ == 1 && !is_metadata_) end_tensor();
    if (depth_ == 1) is_metadata_ = false;
  }

  void key(std::string& name) override {
    if (depth_ == 1) {
      name_ = std::move(name);
      return;
    }
    if (is_metadata_) {
      if (++n_metadata_ > kMaxMetadata)
        throw Refusal("more than " + std::to_string(kMaxMetadata) + " keys", "less", name_);
      metadata_.add(name);
      return;
    }
    count_part();
    if (depth_ == 2) field_ = field_named(name);
  }

  void scalar(const JsonScalar& value) override {
    const std::string_view kind = io::name_of(value.kind);
    if (depth_ == 0) throw Refusal(std::string(kind), "a JSON object as header");
    if (depth_ == 1) throw Refusal(std::string(kind), "an object", name_);
    if (is_metadata_) {
      if (value.kind != Kind::string)
        throw Refusal(std::string(kind) + " in the metadata", "strings only", name_);
      metadata_.add(*value.text);
      return;
    }
    count_part();
    if (depth_ == 2 && field_ == Field::dtype) {
      set_dtype(value);
    } else if (depth_ == 2 && is_numbers()) {
      throw Refusal(std::string(kind) + " as " + label(), "an array of numbers", name_);
    } else if (depth_ == 3 && is_numbers()) {
      add_number(value);
    }
  }

  std::string_view place() const override { return name_; }
  bool may_repeat_keys() const override { return is_metadata_; }

  void finish() { contents_.metadata = metadata_.to_map(); }

 private:
  enum class Field { dtype, shape, offsets, other };

  static Field field_named(std::string_view key) {
    if (key == "dtype") return Field::dtype;
    if (key == "shape") return Field::shape;
    if (key == "data_offsets") return Field::offsets;
    return Field::other;
  }
  std::string label() const { return field_ == Field::shape ? "a shape" : "data_offsets"; }
  bool is_numbers() const { return field_ == Field::shape || field_ == Field::offsets; }

  void count_part() {
    if (++parts_ > kMaxParts)
      throw Refusal("more than " + std::to_string(kMaxParts) + " keys and values", "less", name_);
  }

  void start_entry(bool is_object) {
    if (!is_object) throw Refusal("an array", "an object", name_);
    is_metadata_ = name_ == "__metadata__";
    record_ = {};
    record_.shape_begin = static_cast<std::uint32_t>(contents_.shapes.size());
    elements_ = 1;
    has_shape_ = false;
    parts_ = offsets_ = 0;
    field_ = Field::other;
  }

  void start_field(bool is_object) {
    if (is_metadata_) throw Refusal("an array or object in the metadata", "strings only", name_);
    if (field_ == Field::dtype) throw Refusal("a dtype that is no string", "a string", name_);
    if (is_numbers() && is_object)
      throw Refusal("an object as " + label(), "an array of numbers", name_);
    has_shape_ = has_shape_ || field_ == Field::shape;
  }

  void set_dtype(const JsonScalar& value) {
    if (value.kind != Kind::string)
      throw Refusal(std::string(io::name_of(value.kind)) + " as dtype", "a string", name_);
    record_.dtype = find_dtype(*value.text);
    if (record_.dtype == nullptr)
      throw Refusal("dtype " + printable(*value.text), "a dtype of the format, such as F32 or BF16",
                    name_);
  }

  void add_number(const JsonScalar& value) {
    const bool is_whole = value.kind == Kind::whole;
    if (!is_whole || value.whole > kMaxDim)
      throw Refusal(
          label() + " with " +
              (is_whole ? std::to_string(value.whole) : std::string(io::name_of(value.kind))),
          "whole numbers from 0 to 2^63 - 1", name_);
    if (field_ == Field::shape) {
      const auto product = core::checked_mul(elements_, value.whole);
      if (!product) refuse_overflow();
      elements_ = *product;
      append_number(contents_.shapes, value.whole);
      ++record_.rank;
      return;
    }
    if (offsets_ == 0) record_.begin = value.whole;
    if (offsets_ == 1) record_.end = value.whole;
    ++offsets_;
  }

  [[noreturn]] void refuse_overflow() const {
    throw Refusal("a shape whose size overflows", "at most 2^64 - 1 bits", name_);
  }

  void end_tensor() {
    constexpr const char* kAll = "dtype, shape and data_offsets";
    if (record_.dtype == nullptr) throw Refusal("no dtype", kAll, name_);
    if (!has_shape_) throw Refusal("no shape", kAll, name_);
    if (offsets_ != 2)
      throw Refusal(offsets_ == 0 ? "no data_offsets" : std::to_string(offsets_) + " data_offsets",
                    "a begin and an end", name_);
    check_range();
    record_.name_begin = static_cast<std::uint32_t>(contents_.names.size());
    record_.name_size = static_cast<std::uint32_t>(name_.size());
    contents_.names += name_;
    contents_.records.push_back(record_);
  }

  void check_range() const {
    const auto bits = core::checked_mul(elements_, record_.dtype->bits);
    if (!bits) refuse_overflow();
    if (*bits % 8 != 0) throw Refusal(std::to_string(*bits) + " bits", "whole bytes", name_);
    if (record_.begin > record_.end || record_.end > data_bytes_)
      throw Refusal(
          "data_offsets " + std::to_string(record_.begin) + " to " + std::to_string(record_.end),
          "a range within the file's " + std::to_string(data_bytes_) + " bytes of data", name_);
    if (record_.end - record_.begin != *bits / 8)
      throw Refusal(std::to_string(record_.end - record_.begin) + " bytes",
                    std::to_string(*bits / 8) + " for its dtype and shape", name_);
  }

  Contents& contents_;
  const std::uint64_t data_bytes_;
  StringPool metadata_;
  std::size_t n_metadata_ = 0;
  std::size_t depth_ = 0;
  std::string name_;  // of the tensor, or __metadata__
  bool is_metadata_ = false;
  Field field_ = Field::other;
  Record record_;
  std::uint64_t elements_ = 1;
  bool has_shape_ = false;
  std::size_t parts_ = 0, offsets_ = 0;
};

// Laid one after the other, the tensors fill the data: no gap, no overlap, nothing behind.
void check_cover(const Contents& contents, std::uint64_t data_bytes) {
  std::vector<std::uint32_t> order(contents.records.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto lies_before = [&](std::uint32_t a, std::uint32_t b) {
    const Record &x = contents.records[a], &y = contents.records[b];
    return x.begin != y.begin ? x.begin < y.begin : x.end < y.end;
  };
  if (!std::is_sorted(order.begin(), order.end(), lies_before))
    std::sort(order.begin(), order.end(), lies_before);
  std::uint64_t filled = 0;
  for (const std::uint32_t i : order) {
    const Record& record = contents.records[i];
    if (record.begin != filled)
      throw Refusal(std::string(record.begin < filled ? "an overlap" : "a gap") +
                        " in front of its bytes, which begin at " + std::to_string(record.begin),
                    "bytes from " + std::to_string(filled) + " on", contents.name_of(record));
    filled = record.end;
  }
  if (filled != data_bytes)
    throw Refusal(std::to_string(data_bytes) + " bytes of data",
                  std::to_string(filled) + " for its tensors");
}

}  // namespace

const DTypeFacts* find_dtype(std::string_view name) {
  for (const DTypeFacts& facts : kDTypes)
    if (facts.name == name) return &facts;
  return nullptr;
}

std::vector<std::uint64_t> Contents::shape_of(const Record& r) const {
  std::vector<std::uint64_t> shape;
  std::string_view left = std::string_view(shapes).substr(r.shape_begin);
  for (std::uint32_t i = 0; i < r.rank; ++i) shape.push_back(take_number(left));
  return shape;
}

std::string_view name_of(DType type) {
  for (const DTypeFacts& facts : kDTypes)
    if (facts.type == type) return facts.name;
  return {};
}

std::uint64_t header_bytes(std::span<const std::byte> first_bytes, std::uint64_t file_size) {
  constexpr const char* kKinds = "a .safetensors, .npy or .npz file";
  if (first_bytes.size() < kLengthBytes)
    throw Refusal(std::to_string(file_size) + " bytes", kKinds);
  const auto length = little_endian<std::uint64_t>(first_bytes, 0);
  if (length > kMaxHeader)
    throw Refusal(
        "first bytes that give a header length of " + std::to_string(length),
        std::string(kKinds) + " (safetensors: at most " + std::to_string(kMaxHeader) + ")");
  const auto end = core::checked_add(kLengthBytes, length);
  if (!end || *end > file_size)
    throw Refusal("a header of " + std::to_string(length) + " bytes in a file of " +
                      std::to_string(file_size),
                  "a header within the file");
  return *end;
}

Contents parse(std::span<const std::byte> start, std::uint64_t file_size) {
  Contents contents;
  contents.data_begin = header_bytes(start, file_size);
  if (start.size() < contents.data_begin)
    throw Refusal("the end of the file within the header", "the whole header");
  const auto header = start.first(contents.data_begin).subspan(kLengthBytes);
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{')
    throw Refusal(first == std::string_view::npos
                      ? "a header of blanks"
                      : "a header that begins with \"" + std::string(text.substr(first, 1)) + "\"",
                  "{");
  const std::uint64_t data_bytes = file_size - contents.data_begin;
  HeaderHandler handler(contents, data_bytes);
  parse_json(text, kMaxDepth, handler);
  check_cover(contents, data_bytes);
  handler.finish();
  return contents;
}

}  // namespace headwise::io::safetensors
