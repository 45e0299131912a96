#include "encoder/json_object.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "io/refusal.h"

namespace headwise::encoder {
namespace {

constexpr std::size_t kMaxDepth = 32;
using Kind = io::JsonScalar::Kind;

}  // namespace

class JsonObject::Reader : public io::JsonHandler {
 public:
  explicit Reader(JsonObject& out) : out_(out) {}

  void start(bool is_object) override {
    if (depth_ == 0 && !is_object) throw io::Refusal("a JSON array", "an object");
    if (depth_ == 1) {
      out_.fields_[key_].nested = true;
      in_object_ = is_object;
    }
    ++depth_;
  }
  void end(bool) override { --depth_; }
  void key(std::string& name) override {
    if (depth_ == 1) key_ = name;
    if (depth_ == 2) inner_key_ = name;
  }
  void scalar(const io::JsonScalar& value) override {
    if (depth_ == 0) throw io::Refusal(std::string(name_of(value.kind)), "an object");
    if (depth_ == 1) {
      Value& field = out_.fields_[key_];
      field = {value.kind, false, value.whole, value.number, value.flag, {}};
      if (value.text != nullptr) field.text = std::move(*value.text);
    } else if (depth_ == 2 && in_object_ && inner_key_ == "content" && value.text != nullptr) {
      out_.fields_[key_].text = std::move(*value.text);
    }
  }

 private:
  JsonObject& out_;
  std::string key_, inner_key_;
  std::size_t depth_ = 0;
  bool in_object_ = false;  // the value at depth 2 is an object, not an array
};

JsonObject JsonObject::parse(std::string_view json) {
  JsonObject object;
  Reader reader(object);
  io::parse_json(json, kMaxDepth, reader);
  return object;
}

std::uint64_t JsonObject::positive(const std::string& field) const {
  const Value* value = find(field);
  const std::string expected = "a whole number from 1 up";
  if (value == nullptr) refuse_field(field, "nothing", expected);
  if (value->nested || value->kind != Kind::whole || value->whole == 0)
    refuse_field(field, describe(*value), expected);
  return value->whole;
}

std::uint64_t JsonObject::positive(const std::string& field, std::uint64_t when_missing) const {
  return find(field) == nullptr ? when_missing : positive(field);
}

double JsonObject::positive_real(const std::string& field, double when_missing) const {
  const Value* value = find(field);
  if (value == nullptr) return when_missing;
  const bool number = !value->nested && (value->kind == Kind::whole || value->kind == Kind::real);
  if (!number || !(value->number > 0) || !std::isfinite(value->number))
    refuse_field(field, describe(*value), "a number above 0");
  return value->number;
}

bool JsonObject::flag(const std::string& field, bool when_missing) const {
  const Value* value = find(field);
  if (value == nullptr || (!value->nested && value->kind == Kind::null)) return when_missing;
  if (value->nested || value->kind != Kind::boolean)
    refuse_field(field, describe(*value), "true, false or null");
  return value->flag;
}

std::string JsonObject::text(const std::string& field, const std::string& when_missing) const {
  const Value* value = find(field);
  if (value == nullptr || (!value->nested && value->kind == Kind::null)) return when_missing;
  if (value->nested ? value->text.empty() : value->kind != Kind::string)
    refuse_field(field, describe(*value), "a text");
  return value->text;
}

const JsonObject::Value* JsonObject::find(const std::string& field) const {
  const auto it = fields_.find(field);
  return it == fields_.end() ? nullptr : &it->second;
}

std::string JsonObject::describe(const Value& value) {
  if (value.nested) return "an object or array";
  switch (value.kind) {
    case Kind::boolean:
      return value.flag ? "true" : "false";
    case Kind::whole:
      return std::to_string(value.whole);
    case Kind::string:
      return '"' + value.text + '"';
    case Kind::null:
      return "null";
    case Kind::negative:
    case Kind::real:
      break;
  }
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", value.number);
  return digits;
}

void refuse_field(const std::string& field, const std::string& found, const std::string& expected) {
  throw io::Refusal(field + ' ' + found, expected);
}

}  // namespace headwise::encoder
