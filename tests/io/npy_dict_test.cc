#include "io/npy_dict.h"

#include <string>

#include "gtest/gtest.h"
#include "io/refusal.h"

namespace headwise::io::npy {
namespace {

std::string refusal_of(const std::string& text) {
  try {
    parse_dict(text);
  } catch (const Refusal& refusal) {
    return "found " + refusal.found() + ", expected " + refusal.expected();
  }
  return "taken";
}

std::string with_shape(const std::string& shape) {
  return "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
}

TEST(NpyDict, WhatNumpyWrites) {
  const Dict dict =
      parse_dict("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }      \n");
  EXPECT_EQ(dict.descr, "<f4");
  EXPECT_TRUE(dict.fortran_order);
  EXPECT_EQ(dict.shape, (std::vector<std::uint64_t>{3, 4}));
}

TEST(NpyDict, OrderQuotesAndSpacingAreFree) {
  for (const char* text :
       {"{'shape':(3,4),'descr':'<f4','fortran_order':False}",
        "{\"fortran_order\" : False , \"shape\" : ( 3 , 4 , ) , \"descr\" : \"<f4\" , }",
        "\n\t{ 'descr':\n'<f4',\r\n'fortran_order':False, 'shape': (3L, 4L)}"}) {
    const Dict dict = parse_dict(text);
    EXPECT_EQ(dict.descr, "<f4");
    EXPECT_FALSE(dict.fortran_order);
    EXPECT_EQ(dict.shape, (std::vector<std::uint64_t>{3, 4})) << text;
  }
}

TEST(NpyDict, ShapesAreTuplesOfWholeNumbers) {
  EXPECT_TRUE(parse_dict(with_shape("()")).shape.empty());
  EXPECT_EQ(parse_dict(with_shape("(0,)")).shape, std::vector<std::uint64_t>{0});
  EXPECT_EQ(parse_dict(with_shape("(9223372036854775807,)")).shape[0], 9223372036854775807u);
  EXPECT_EQ(
      refusal_of(with_shape("(9223372036854775808,)")),
      "found \"9223372036854775808,\" at offset 51 of the dict, expected whole numbers from 0 "
      "to 2^63 - 1 in the shape");
  EXPECT_EQ(refusal_of(with_shape("(3)")),
            "found the number (3) as shape, expected a tuple such as (3,)");
  for (const char* shape : {"3",       "[3]",
                            "(3 4)",   "(,)",
                            "(3,,4)",  "(-1,)",
                            "(+1,)",   "(1.0,)",
                            "(1e3,)",  "(0x1,)",
                            "(01,)",   "(1_0,)",
                            "(True,)", "((3,),)",
                            "('3',)",  "(3,",
                            "(3",      "(",
                            "",        "None",
                            "(L,)",    "(99999999999999999999999,)"})
    EXPECT_NE(refusal_of(with_shape(shape)), "taken") << shape;
}

TEST(NpyDict, ExactlyTheThreeKeysOnceEach) {
  EXPECT_EQ(refusal_of("{'descr': '<f4', 'shape': ()}"),
            "found no fortran_order, expected descr, fortran_order and shape");
  EXPECT_EQ(refusal_of("{'fortran_order': False, 'shape': ()}"),
            "found no descr, expected descr, fortran_order and shape");
  EXPECT_EQ(refusal_of("{'descr': '<f4', 'fortran_order': False}"),
            "found no shape, expected descr, fortran_order and shape");
  EXPECT_EQ(refusal_of("{}"), "found no descr, expected descr, fortran_order and shape");
  EXPECT_EQ(refusal_of("{'descr': '<f4', 'descr': '<f4'}"),
            "found the key 'descr' twice, expected each key once");
  EXPECT_EQ(refusal_of("{'more': 1}"),
            "found the key 'more', expected only descr, fortran_order and shape");
}

TEST(NpyDict, StructuredDtypesAreNamed) {
  for (const char* descr : {"[('a', '<f4')]", "('<f4', (2,))", "{'names': []}"})
    EXPECT_EQ(refusal_of("{'descr': " + std::string(descr) + ", "),
              "found a structured dtype, expected one plain element type such as '<f4'");
}

TEST(NpyDict, OtherPythonIsRefused) {
  for (const char* text : {"",
                           " ",
                           "[]",
                           "{",
                           "{'descr'",
                           "{'descr':",
                           "{'descr': '<f4'",
                           "{'descr': '<f4' 'x'}",
                           "{'descr': \"<f4'}",
                           "{'descr': '<\\x664'}",
                           "{'descr': u'<f4'}",
                           "{'descr': b'<f4'}",
                           "{'descr': __import__('os')}",
                           "{'fortran_order': 0}",
                           "{'fortran_order': false}",
                           "{'fortran_order': Truely}",
                           "{descr: '<f4'}",
                           "{,}",
                           "{'descr': '<f4',,}",
                           "{'descr': '<f4'\n",
                           "{'de\nscr': '<f4'}"})
    EXPECT_NE(refusal_of(text), "taken") << text;
  EXPECT_EQ(refusal_of(with_shape("(3,)") + " # x"),
            "found \"# x\" at offset 58 of the dict, expected nothing behind the dict");
  EXPECT_NE(refusal_of(with_shape("(3,)") + std::string(1, '\0')), "taken");
}

TEST(NpyDict, AMegabyteOfAnythingEndsSoon) {
  for (const char* part : {"(", "{", "'", "[", " ", "1,", "'descr': '<f4', "})
    for (const char* start : {"", "{'shape': ("}) {
      std::string text = start;
      while (text.size() < (1u << 20)) text += part;
      EXPECT_NE(refusal_of(text), "taken");
    }
}

}  // namespace
}  // namespace headwise::io::npy
