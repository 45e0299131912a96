#include "io/key_set.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace headwise::io {
namespace {

constexpr std::size_t kFirstSlots = 16;

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

// Both halves of the 128-bit product, folded.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;  // fits 128 bits
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t hash_of(std::string_view key) {
  static const std::uint64_t kSeed = random_seed(), kFactor = random_seed() | 1;
  std::uint64_t hash = kSeed ^ key.size();
  while (!key.empty()) {
    std::uint64_t word = 0;
    const std::size_t n = std::min(key.size(), sizeof word);
    std::memcpy(&word, key.data(), n);
    hash = mix(hash ^ word, kFactor);
    key.remove_prefix(n);
  }
  return mix(hash, kFactor);
}

}  // namespace

std::string_view KeySet::key_at(std::uint32_t number) const {
  const std::size_t begin = number == 1 ? 0 : ends_[number - 2];
  return std::string_view(letters_).substr(begin, ends_[number - 1] - begin);
}

KeySet::Slot& KeySet::find_slot(std::string_view key, std::uint64_t hash) {
  const auto short_hash = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t i = hash;; ++i) {
    Slot& slot = slots_[i & (slots_.size() - 1)];
    if (slot.key == 0 || (slot.hash == short_hash && key_at(slot.key) == key)) return slot;
  }
}

void KeySet::grow() {
  slots_.assign(std::max(kFirstSlots, slots_.size() << 1), Slot{});
  for (std::size_t k = 0; k < hashes_.size(); ++k) {  // all differ: no need to compare them
    std::size_t i = hashes_[k];
    while (slots_[i & (slots_.size() - 1)].key != 0) ++i;
    slots_[i & (slots_.size() - 1)] = {static_cast<std::uint32_t>(hashes_[k] >> 32),
                                       static_cast<std::uint32_t>(k + 1)};
  }
}

bool KeySet::insert(std::string_view key) {
  if (hashes_.size() >= slots_.size() >> 1) grow();
  const std::uint64_t hash = hash_of(key);
  Slot& slot = find_slot(key, hash);
  if (slot.key != 0) return false;
  letters_ += key;
  ends_.push_back(letters_.size());
  hashes_.push_back(hash);
  slot = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(hashes_.size())};
  return true;
}

void KeySet::clear() {
  if (hashes_.empty()) return;
  if (slots_.size() > std::max(kFirstSlots, hashes_.size() << 3))
    *this = KeySet();  // a large object before: clearing its slots would cost more each time
  else
    std::fill(slots_.begin(), slots_.end(), Slot{});
  letters_.clear();
  ends_.clear();
  hashes_.clear();
}

}  // namespace headwise::io
