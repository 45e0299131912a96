#include "io/npy_dict.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "io/refusal.h"

namespace headwise::io::npy {
namespace {

constexpr std::uint64_t kMaxDim = std::numeric_limits<std::int64_t>::max();

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // The next letter behind blanks; 0 at the end.
  char peek() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n\f", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char letter) {
    if (peek() != letter) return false;
    ++at_;
    return true;
  }
  void expect(char letter) {
    if (!take(letter)) refuse(std::string(1, letter));
  }
  void expect_end() {
    peek();
    if (at_ != text_.size()) refuse("nothing behind the dict");
  }

  std::string_view string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') refuse("a string in quotes");
    const std::size_t begin = at_ + 1,
                      end = text_.find_first_of(std::string{quote, '\\', '\n'}, begin);
    if (end == std::string_view::npos || text_[end] != quote) refuse("a plain string in quotes");
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  std::string_view word() {
    peek();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0)) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  std::uint64_t whole_number() {
    peek();
    const std::size_t begin = at_;
    std::string_view digits = word();
    if (digits.ends_with('L')) digits.remove_suffix(1);  // Python 2 wrote long integers so
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    const bool leading_zero = digits.size() > 1 && digits[0] == '0';
    if (is_number && !leading_zero && value <= kMaxDim) return value;
    at_ = begin;
    refuse("whole numbers from 0 to 2^63 - 1 in the shape");
  }

  [[noreturn]] void refuse(const std::string& expected) {
    peek();
    constexpr std::size_t kShown = 20;
    throw Refusal(at_ == text_.size() ? std::string("the end of the header")
                                      : "\"" + std::string(text_.substr(at_, kShown)) +
                                            "\" at offset " + std::to_string(at_) + " of the dict",
                  expected);
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

std::vector<std::uint64_t> parse_shape(Scanner& scanner) {
  std::vector<std::uint64_t> shape;
  if (!scanner.take('(')) scanner.refuse("a shape that is a tuple");
  bool comma = true;
  while (!scanner.take(')')) {
    if (!comma) scanner.refuse(", or ) in the shape");
    shape.push_back(scanner.whole_number());
    comma = scanner.take(',');
  }
  if (shape.size() == 1 && !comma)
    throw Refusal("the number (" + std::to_string(shape[0]) + ") as shape",
                  "a tuple such as (" + std::to_string(shape[0]) + ",)");
  return shape;
}

bool parse_bool(Scanner& scanner) {
  Scanner at_value = scanner;
  const std::string_view word = scanner.word();
  if (word != "True" && word != "False") at_value.refuse("True or False as fortran_order");
  return word == "True";
}

std::string parse_descr(Scanner& scanner) {
  const char first = scanner.peek();
  if (first == '[' || first == '(' || first == '{')
    throw Refusal("a structured dtype", "one plain element type such as '<f4'");
  return std::string(scanner.string());
}

}  // namespace

Dict parse_dict(std::string_view text) {
  Dict dict;
  bool has_descr = false, has_order = false, has_shape = false;
  const auto see = [](bool& seen, std::string_view key) {
    if (seen) throw Refusal("the key '" + std::string(key) + "' twice", "each key once");
    seen = true;
  };
  Scanner scanner(text);
  scanner.expect('{');
  bool comma = true;
  while (!scanner.take('}')) {
    if (!comma) scanner.refuse(", or }");
    const std::string_view key = scanner.string();
    scanner.expect(':');
    if (key == "descr") {
      see(has_descr, key);
      dict.descr = parse_descr(scanner);
    } else if (key == "fortran_order") {
      see(has_order, key);
      dict.fortran_order = parse_bool(scanner);
    } else if (key == "shape") {
      see(has_shape, key);
      dict.shape = parse_shape(scanner);
    } else {
      throw Refusal("the key '" + std::string(key) + "'", "only descr, fortran_order and shape");
    }
    comma = scanner.take(',');
  }
  scanner.expect_end();
  if (!has_descr || !has_order || !has_shape)
    throw Refusal(!has_descr   ? "no descr"
                  : !has_order ? "no fortran_order"
                               : "no shape",
                  "descr, fortran_order and shape");
  return dict;
}

}  // namespace headwise::io::npy
