#include "io/json_events.h"

#include <vector>

#include "headwise/io.h"
#include "io/key_set.h"
#include "io/utf8.h"

namespace headwise::io {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view without_blanks_around(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// Where the string ends that opens in front of `begin`: behind its closing quote.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  for (std::size_t at = begin;;) {
    const std::size_t quote = text.find('"', at);
    if (quote == std::string_view::npos) return text.size();
    std::size_t slashes = 0;
    while (quote - slashes > begin && text[quote - slashes - 1] == '\\') ++slashes;
    at = quote + 1;
    if (slashes % 2 == 0) return at;
  }
}

// nlohmann's lexer takes a zero byte for the end of the text, and keeps a token's letters and the
// blanks in front of it several times over.
void check_letters(std::string_view text) {
  if (const auto at = find_invalid_utf8(text))
    throw Refusal("a byte that is not UTF-8 at offset " + std::to_string(*at) + " of the JSON",
                  "UTF-8");
  const std::size_t zero = text.find('\0');
  if (zero != std::string_view::npos)
    throw Refusal("a zero byte at offset " + std::to_string(zero) + " of the JSON", "JSON");
  std::size_t begin = 0;  // of the stretch
  for (std::size_t i = 0; i < text.size();) {
    if (i - begin > kMaxStretch)
      throw Refusal("a number or blanks of more than " + std::to_string(kMaxStretch) +
                        " bytes at offset " + std::to_string(begin) + " of the JSON",
                    "less");
    switch (text[i]) {
      case '"':
        begin = i = end_of_string(text, i + 1);
        break;
      case ',':
      case ':':
      case '[':
      case ']':
      case '{':
      case '}':
        begin = ++i;
        break;
      default:
        ++i;
    }
  }
}

class Events final : public nlohmann::json_sax<Json> {
 public:
  Events(std::size_t max_depth, JsonHandler& handler)
      : max_depth_(max_depth), handler_(handler), keys_(max_depth) {}

  bool null() override { return scalar({}); }
  bool boolean(bool flag) override {
    JsonScalar value{JsonScalar::Kind::boolean};
    value.flag = flag;
    return scalar(value);
  }
  bool number_integer(number_integer_t number) override {  // only those with a minus sign
    JsonScalar value{JsonScalar::Kind::negative};
    value.number = static_cast<double>(number);
    return scalar(value);
  }
  bool number_unsigned(number_unsigned_t number) override {
    JsonScalar value{JsonScalar::Kind::whole, number};
    value.number = static_cast<double>(number);
    return scalar(value);
  }
  bool number_float(number_float_t number, const string_t&) override {
    JsonScalar value{JsonScalar::Kind::real};
    value.number = number;
    return scalar(value);
  }
  bool string(string_t& text) override {
    JsonScalar value{JsonScalar::Kind::string};
    value.text = &text;
    return scalar(value);
  }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(std::size_t) override {
    open(true);
    keys_[depth_ - 1].clear();
    return true;
  }
  bool start_array(std::size_t) override {
    open(false);
    return true;
  }
  bool end_object() override {
    keys_[depth_ - 1].clear();
    return close(true);
  }
  bool end_array() override { return close(false); }
  bool key(string_t& name) override {
    if (!handler_.may_repeat_keys() && !keys_[depth_ - 1].insert(name))
      throw Refusal("the key \"" + printable(name) + "\" twice", "each key once", handler_.place());
    handler_.key(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const Json::exception& error) override {
    const std::string what =
        error.id == kNumberOverflow ? "a number too large for a double" : "text that is not JSON";
    throw Refusal(what + " at offset " + std::to_string(position) + " of the JSON", "JSON",
                  handler_.place());
  }

 private:
  static constexpr int kNumberOverflow = 406;  // nlohmann's out_of_range

  bool scalar(const JsonScalar& value) {
    handler_.scalar(value);
    return true;
  }
  void open(bool is_object) {
    if (depth_ == max_depth_)
      throw Refusal("JSON nested deeper than " + std::to_string(max_depth_) + " levels",
                    "at most " + std::to_string(max_depth_), handler_.place());
    handler_.start(is_object);
    ++depth_;
  }
  bool close(bool is_object) {
    --depth_;
    handler_.end(is_object);
    return true;
  }

  std::size_t max_depth_;
  JsonHandler& handler_;
  std::size_t depth_ = 0;
  std::vector<KeySet> keys_;  // of the open object at each depth
};

}  // namespace

std::string_view name_of(JsonScalar::Kind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"null",
                                                      "true or false",
                                                      "a number",
                                                      "a negative number",
                                                      "a number with point or exponent",
                                                      "a string"};
  return kNames[static_cast<std::size_t>(kind)];
}

void parse_json(std::string_view text, std::size_t max_depth, JsonHandler& handler) {
  text = without_blanks_around(text);
  check_letters(text);
  Events events(max_depth, handler);
  Json::sax_parse(text.begin(), text.end(), &events);
}

}  // namespace headwise::io
