#include "io/key_set.h"

#include <string>

#include "gtest/gtest.h"

namespace headwise::io {
namespace {

TEST(KeySet, EachKeyOnce) {
  KeySet keys;
  for (const int n : {20000, 3, 0, 100}) {
    for (int i = 0; i < n; ++i) ASSERT_TRUE(keys.insert(std::to_string(i))) << i;
    for (int i = 0; i < n; ++i) ASSERT_FALSE(keys.insert(std::to_string(i))) << i;
    EXPECT_TRUE(keys.insert(""));
    EXPECT_FALSE(keys.insert(""));
    EXPECT_TRUE(keys.insert(std::string(1, '\0')));
    EXPECT_TRUE(keys.insert(std::string(8, '\0')));
    EXPECT_TRUE(keys.insert(std::string(9, '\0')));
    keys.clear();
  }
}

}  // namespace
}  // namespace headwise::io
