// One deflated member of a zip file, as a stream of bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "io/regular_file.h"
#include "io/zip_directory.h"

namespace headwise::io {

class Inflater {
 public:
  // Both have to live as long as this object.
  Inflater(const ByteSource& file, const zip::Member& member);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills `out` as far as there is data; throws a Refusal for data that no deflate wrote.
  std::size_t read(std::span<std::byte> out);
  // The stream has ended, and with it the member's bytes.
  bool at_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headwise::io
