#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "core/checked.h"
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

// Fills a Contents from the header's events. Depth 1 is the header's object, 2 a tensor or the
// metadata, 3 a shape or a pair of offsets.
class HeaderHandler final : public JsonHandler {
 public:
  explicit HeaderHandler(Contents& contents) : contents_(contents) {}

  void start(bool is_object) override {
    if (depth_ == 0 && !is_object) throw Refusal("an array", "a JSON object as header");
    if (depth_ == 1) start_entry(is_object);
    if (depth_ == 2) start_field(is_object);
    if (depth_ == 3 && (field_ == Field::shape || field_ == Field::offsets))
      throw Refusal(label() + " with an array or object in it", label() + " with numbers", place());
    ++depth_;
  }

  void end(bool) override {
    --depth_;
    if (depth_ == 1) end_entry();
  }

  void key(std::string& name) override {
    if (depth_ == 1) {
      name_ = std::move(name);
    } else if (depth_ == 2) {
      key_ = std::move(name);
      field_ = in_metadata() ? Field::other : field_named(key_);
    }
  }

  void scalar(const JsonScalar& value) override {
    if (depth_ == 0) throw Refusal(std::string(io::name_of(value.kind)), "a JSON object as header");
    if (depth_ == 1) throw Refusal(std::string(io::name_of(value.kind)), "an object", name_);
    if (in_metadata())
      metadata_value(value);
    else if (depth_ == 2)
      field_value(value);
    else if (depth_ == 3 && (field_ == Field::shape || field_ == Field::offsets))
      number_in_field(value);
  }

  std::string place() const override { return depth_ >= 1 ? name_ : std::string(); }
  bool may_repeat_keys() const override { return depth_ == 2 && in_metadata(); }

 private:
  enum class Field { dtype, shape, offsets, other };

  static Field field_named(std::string_view key) {
    if (key == "dtype") return Field::dtype;
    if (key == "shape") return Field::shape;
    if (key == "data_offsets") return Field::offsets;
    return Field::other;
  }
  std::string label() const { return field_ == Field::shape ? "a shape" : "data_offsets"; }
  bool in_metadata() const { return depth_ >= 2 && is_metadata_; }

  void start_entry(bool is_object) {
    if (!is_object) throw Refusal("an array", "an object", name_);
    is_metadata_ = name_ == "__metadata__";
    record_ = {};
    has_dtype_ = has_shape_ = false;
    offsets_seen_ = 0;
  }

  void start_field(bool is_object) {
    if (is_metadata_)
      throw Refusal("a metadata value that is no string", "strings in the metadata", name_);
    if (field_ == Field::dtype) throw Refusal("a dtype that is no string", "a string", name_);
    if (field_ == Field::other) return;
    if (is_object) throw Refusal("an object as " + label(), "an array of numbers", name_);
    if (field_ == Field::shape) {
      has_shape_ = true;
      record_.dims_begin = static_cast<std::uint32_t>(contents_.dims.size());
    }
  }

  void metadata_value(const JsonScalar& value) {
    if (value.kind != Kind::string)
      throw Refusal("the metadata value " + std::string(io::name_of(value.kind)),
                    "strings in the metadata", name_);
    contents_.metadata[key_] = std::move(*value.text);
  }

  void field_value(const JsonScalar& value) {
    if (field_ == Field::shape || field_ == Field::offsets)
      throw Refusal(std::string(io::name_of(value.kind)) + " as " + label(), "an array of numbers",
                    name_);
    if (field_ == Field::other) return;
    if (value.kind != Kind::string)
      throw Refusal(std::string(io::name_of(value.kind)) + " as dtype", "a string", name_);
    record_.dtype = find_dtype(*value.text);
    if (record_.dtype == nullptr)
      throw Refusal("dtype " + *value.text, "a dtype of the format, such as F32 or BF16", name_);
    has_dtype_ = true;
  }

  void number_in_field(const JsonScalar& value) {
    if (value.kind != Kind::whole || value.whole > kMaxDim)
      throw Refusal(label() + " with " +
                        (value.kind == Kind::whole ? std::to_string(value.whole)
                                                   : std::string(io::name_of(value.kind))),
                    "whole numbers from 0 to 2^63 - 1", name_);
    if (field_ == Field::shape) {
      contents_.dims.push_back(value.whole);
      ++record_.dims_size;
      return;
    }
    if (offsets_seen_ == 0) record_.begin = value.whole;
    if (offsets_seen_ == 1) record_.end = value.whole;
    ++offsets_seen_;
  }

  void end_entry() {
    if (is_metadata_) {
      is_metadata_ = false;
      return;
    }
    if (!has_dtype_) throw Refusal("no dtype", "dtype, shape and data_offsets", name_);
    if (!has_shape_) throw Refusal("no shape", "dtype, shape and data_offsets", name_);
    if (offsets_seen_ != 2)
      throw Refusal(
          offsets_seen_ == 0 ? "no data_offsets" : std::to_string(offsets_seen_) + " data_offsets",
          "a begin and an end", name_);
    record_.name_begin = static_cast<std::uint32_t>(contents_.names.size());
    record_.name_size = static_cast<std::uint32_t>(name_.size());
    contents_.names += name_;
    contents_.records.push_back(record_);
  }

  Contents& contents_;
  std::size_t depth_ = 0;
  std::string name_, key_;  // of the tensor, of its field
  Field field_ = Field::other;
  Record record_;
  bool is_metadata_ = false, has_dtype_ = false, has_shape_ = false;
  std::uint64_t offsets_seen_ = 0;
};

// Overflow is an empty optional.
std::optional<std::uint64_t> bits_of(std::span<const std::uint64_t> shape, std::uint64_t width) {
  std::optional<std::uint64_t> count = 1;
  for (const std::uint64_t n : shape) {
    count = core::checked_mul(*count, n);
    if (!count) return std::nullopt;
  }
  return core::checked_mul(*count, width);
}

void check_record(const Contents& contents, const Record& record, std::uint64_t data_bytes) {
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    throw Refusal(found, expected, std::string(contents.name_of(record)));
  };
  const auto bits = bits_of(contents.shape_of(record), record.dtype->bits);
  if (!bits) refuse("a shape whose size overflows", "at most 2^64 - 1 bits");
  if (*bits % 8 != 0) refuse(std::to_string(*bits) + " bits", "whole bytes");
  if (record.begin > record.end || record.end > data_bytes)
    refuse("data_offsets " + std::to_string(record.begin) + " to " + std::to_string(record.end),
           "a range within the file's " + std::to_string(data_bytes) + " bytes of data");
  if (record.end - record.begin != *bits / 8)
    refuse(std::to_string(record.end - record.begin) + " bytes",
           std::to_string(*bits / 8) + " for its dtype and shape");
}

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
                    "bytes from " + std::to_string(filled) + " on",
                    std::string(contents.name_of(record)));
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
  HeaderHandler handler(contents);
  parse_json(text, kMaxDepth, handler);
  const std::uint64_t data_bytes = file_size - contents.data_begin;
  for (const Record& record : contents.records) check_record(contents, record, data_bytes);
  check_cover(contents, data_bytes);
  return contents;
}

}  // namespace headwise::io::safetensors
