// The fields of a small JSON object that a stranger wrote: what config.json and
// tokenizer_config.json are read with.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "io/json_events.h"

namespace headwise::encoder {

class JsonObject {
 public:
  // Throws a Refusal for what is no JSON object, or nests deeper than 32 levels.
  static JsonObject parse(std::string_view json);

  // Each takes a default for a missing field and throws a Refusal for a wrong type. A flag or a
  // text that is null counts as missing.
  std::uint64_t positive(const std::string& field) const;  // no default: has to be there
  std::uint64_t positive(const std::string& field, std::uint64_t when_missing) const;
  double positive_real(const std::string& field, double when_missing) const;
  bool flag(const std::string& field, bool when_missing) const;
  // The text itself, or the text "content" of an object, as in a saved AddedToken.
  std::string text(const std::string& field, const std::string& when_missing) const;

 private:
  class Reader;
  struct Value {
    io::JsonScalar::Kind kind = io::JsonScalar::Kind::null;
    bool nested = false;  // an object or array, of which only `text` is kept
    std::uint64_t whole = 0;
    double number = 0;
    bool flag = false;
    std::string text;
  };

  const Value* find(const std::string& field) const;
  static std::string describe(const Value& value);

  std::map<std::string, Value> fields_;
};

// "found FIELD FOUND, expected EXPECTED": how all refusals of a field are worded.
[[noreturn]] void refuse_field(const std::string& field, const std::string& found,
                               const std::string& expected);

}  // namespace headwise::encoder
