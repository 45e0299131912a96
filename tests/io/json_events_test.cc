#include "io/json_events.h"

#include <string>

#include "gtest/gtest.h"

namespace headwise::io {
namespace {

// Writes down what it is told.
class Recorder final : public JsonHandler {
 public:
  void start(bool is_object) override { seen += is_object ? "{" : "["; }
  void end(bool is_object) override { seen += is_object ? "}" : "]"; }
  void key(std::string& name) override { seen += name + ":"; }
  void scalar(const JsonScalar& value) override {
    switch (value.kind) {
      case JsonScalar::Kind::null:
        seen += "null ";
        break;
      case JsonScalar::Kind::boolean:
        seen += value.flag ? "true " : "false ";
        break;
      case JsonScalar::Kind::whole:
        seen += std::to_string(value.whole) + " ";
        break;
      case JsonScalar::Kind::negative:
      case JsonScalar::Kind::real:
        seen += std::to_string(value.number) + " ";
        break;
      case JsonScalar::Kind::string:
        seen += "'" + *value.text + "' ";
    }
  }
  bool may_repeat_keys() const override { return repeat; }

  std::string seen;
  bool repeat = false;
};

std::string events_of(std::string_view text, std::size_t max_depth = 4) {
  Recorder recorder;
  parse_json(text, max_depth, recorder);
  return recorder.seen;
}

std::string refusal_of(std::string_view text, std::size_t max_depth = 4) {
  try {
    return "taken: " + events_of(text, max_depth);
  } catch (const Refusal& refusal) {
    return refusal.found();
  }
}

TEST(JsonEvents, EveryKindOfValueArrives) {
  EXPECT_EQ(
      events_of(R"( {"a": [null, true, false, 0, 18446744073709551615, -2, 1.5, "x\u00e4"]} )"),
      "{a:[null true false 0 18446744073709551615 -2.000000 1.500000 'x\u00e4' ]}");
  EXPECT_EQ(events_of("3"), "3 ");
  EXPECT_EQ(events_of(R"("\"\\")"), "'\"\\' ");
}

TEST(JsonEvents, NestingIsBounded) {
  EXPECT_EQ(events_of("[[[[]]]]"), "[[[[]]]]");
  EXPECT_EQ(refusal_of("[[[[[]]]]]"), "JSON nested deeper than 4 levels");
  EXPECT_EQ(refusal_of(R"({"a":{"a":{"a":{"a":{}}}}})"), "JSON nested deeper than 4 levels");
  EXPECT_EQ(refusal_of(std::string(1000000, '[')), "JSON nested deeper than 4 levels");
}

TEST(JsonEvents, RepeatedKeysAreRefusedPerObject) {
  EXPECT_EQ(events_of(R"([{"a":1},{"a":1}])"), "[{a:1 }{a:1 }]");
  EXPECT_EQ(events_of(R"({"a":{"a":1},"b":{"a":1}})"), "{a:{a:1 }b:{a:1 }}");
  EXPECT_EQ(refusal_of(R"({"a":1,"a":1})"), "the key \"a\" twice");
  EXPECT_EQ(refusal_of(R"({"a":{"b":1},"a":1})"), "the key \"a\" twice");
  EXPECT_EQ(refusal_of(R"({"x":{"a":1,"\u0061":1}})"), "the key \"a\" twice");
  Recorder recorder;
  recorder.repeat = true;
  parse_json(R"({"a":1,"a":2})", 4, recorder);
  EXPECT_EQ(recorder.seen, "{a:1 a:2 }");
}

TEST(JsonEvents, WhatIsNoJsonIsRefused) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "}",
                           "{]",
                           "[1,]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{a:1}",
                           "[01]",
                           "[+1]",
                           "[.5]",
                           "[1.]",
                           "[NaN]",
                           "nul",
                           "[1] 2",
                           "// x\n1",
                           "'a'",
                           "\"\\x\"",
                           "\"\\ud800\"",
                           "\"a\nb\"",
                           "\"a",
                           "\xef\xbb\xbf\x31\x32 x"})
    EXPECT_TRUE(refusal_of(text).starts_with("text that is not JSON at offset ")) << text;
  EXPECT_EQ(refusal_of("[1e999]"), "a number too large for a double at offset 6 of the JSON");
}

TEST(JsonEvents, BytesThatJsonDoesNotHaveAreRefused) {
  EXPECT_EQ(refusal_of("\"a\xff\""), "a byte that is not UTF-8 at offset 2 of the JSON");
  EXPECT_EQ(refusal_of(std::string_view("{}\0{", 4)), "a zero byte at offset 2 of the JSON");
  EXPECT_EQ(refusal_of(std::string_view("{}\0", 3)), "a zero byte at offset 2 of the JSON");
}

TEST(JsonEvents, LongStretchesAreForStringsOnly) {
  const std::string longest(kMaxStretch, ' '), string(kMaxStretch * 2, 'x');
  EXPECT_EQ(events_of("[" + longest + "]"), "[]");
  EXPECT_TRUE(refusal_of("[" + longest + " ]").starts_with("a number or blanks of more than"));
  EXPECT_TRUE(refusal_of(string).starts_with("a number or blanks of more than"));
  EXPECT_EQ(events_of("[\"" + string + "\"]"), "['" + string + "' ]");
  EXPECT_EQ(events_of("\"" + std::string(100, '\\') + "\""), "'" + std::string(50, '\\') + "' ");
  EXPECT_EQ(events_of(longest + longest + "[]" + longest + longest), "[]");  // padding
}

}  // namespace
}  // namespace headwise::io
