#include "io/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>

#include "io/refusal.h"

namespace headwise::io {

struct Inflater::State {
  const ByteSource& file;
  const zip::Member& member;
  std::uint64_t next = 0, left = 0;  // of the member's bytes
  z_stream stream{};
  bool ended = false;
  std::array<std::byte, 32768> input;

  void refill();
  bool step();
};

Inflater::Inflater(const ByteSource& file, const zip::Member& member)
    : state_(new State{file, member, member.data_begin, member.stored_bytes, {}, false, {}}) {
  constexpr int kRawDeflate = -15;  // no zlib header, a window of 2^15
  if (inflateInit2(&state_->stream, kRawDeflate) != Z_OK) throw std::bad_alloc();
}

Inflater::~Inflater() { inflateEnd(&state_->stream); }

void Inflater::State::refill() {
  if (stream.avail_in > 0 || left == 0) return;
  const auto chunk = std::span(input).first(std::min<std::uint64_t>(left, input.size()));
  file.read(next, chunk);
  next += chunk.size();
  left -= chunk.size();
  stream.next_in = reinterpret_cast<Bytef*>(chunk.data());
  stream.avail_in = static_cast<uInt>(chunk.size());
}

// False when there is no more to come.
bool Inflater::State::step() {
  if (ended) return false;
  refill();
  const int result = inflate(&stream, Z_NO_FLUSH);
  if (result == Z_MEM_ERROR) throw std::bad_alloc();
  ended = result == Z_STREAM_END;
  const bool stuck = result == Z_BUF_ERROR && stream.avail_in == 0 && left == 0;
  if (stuck) throw Refusal("the end of the deflated data", "more of it", member.name);
  if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
    throw Refusal("deflated data that is damaged", "data as deflate writes it", member.name);
  return true;
}

std::size_t Inflater::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t room =
        std::min<std::size_t>(out.size() - done, std::numeric_limits<uInt>::max());
    state_->stream.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    state_->stream.avail_out = static_cast<uInt>(room);
    const bool more = state_->step();
    done += room - state_->stream.avail_out;
    if (!more) break;
  }
  return done;
}

bool Inflater::at_end() {
  std::byte beyond{};
  return read({&beyond, 1}) == 0 && state_->left == 0 && state_->stream.avail_in == 0;
}

}  // namespace headwise::io
