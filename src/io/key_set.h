// The keys of one JSON object, to notice a repeated one. A header may have a million keys that
// somebody chose to collide, so the hash is seeded; and nodes of a hundred bytes are too many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwise::io {

class KeySet {
 public:
  bool insert(std::string_view key);  // false: it is there already
  void clear();

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t key = 0;  // its number from 1 on; 0: the slot is free
  };
  std::string_view key_at(std::uint32_t number) const;
  Slot& find_slot(std::string_view key, std::uint64_t hash);
  void grow();

  std::string letters_;            // of all keys, one behind the other
  std::vector<std::size_t> ends_;  // in letters_
  std::vector<std::uint64_t> hashes_;
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
};

}  // namespace headwise::io
