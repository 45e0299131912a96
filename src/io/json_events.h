// JSON from strangers, as a stream of events: nesting is bounded, a repeated key is refused, and
// nothing is kept that the handler does not keep (a document tree of 200 000 levels cannot be
// destroyed without overflowing the stack, and keeps the last of two equal keys).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/refusal.h"
#include "nlohmann/json.hpp"

namespace headwise::io {

struct JsonScalar {
  enum class Kind { null, boolean, whole, negative, real, string } kind = Kind::null;
  std::uint64_t whole = 0;      // 0 and above, as written without point or exponent
  double number = 0.0;          // whole, negative and real
  bool flag = false;            // boolean
  std::string* text = nullptr;  // string; may be moved from
};
std::string_view name_of(JsonScalar::Kind kind);  // "a string"

class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void start(bool is_object) = 0;  // throw a Refusal to stop
  virtual void end(bool is_object) = 0;
  virtual void key(std::string& name) = 0;  // may be moved from
  virtual void scalar(const JsonScalar& value) = 0;
  // What error messages call the place, for example the tensor; and whether the object that is
  // open may repeat keys (its last value counts).
  virtual std::string_view place() const { return {}; }
  virtual bool may_repeat_keys() const { return false; }
};

// Throws a Refusal when `text` is not one JSON value with blanks around it, nests deeper than
// `max_depth`, repeats a key, is not UTF-8 or has kMaxStretch bytes outside strings without a
// bracket, comma, colon or quote. Needs memory for one value, and for the keys of the objects that
// are open.
constexpr std::size_t kMaxStretch = 65536;
void parse_json(std::string_view text, std::size_t max_depth, JsonHandler& handler);

}  // namespace headwise::io
