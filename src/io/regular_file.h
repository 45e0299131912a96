// Opening what somebody else names: regular files only, never a pipe or a device that could block
// or never end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace headwise::io {

// Random access to bytes, so that parsers run on files and on the fuzzers' memory alike.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // All of `out`, or a Refusal.
  virtual void read(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

class SpanSource final : public ByteSource {
 public:
  explicit SpanSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> bytes_;
};

// Open for reading. Throws a Refusal, as do all members.
class RegularFile final : public ByteSource {
 public:
  explicit RegularFile(const std::string& path);
  ~RegularFile() override;
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out) const override;
  // As many bytes as there are from `offset` on: a file in /proc has more than its size.
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  friend class Mapping;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

// The whole file, mapped for reading. Outlives the RegularFile.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(const RegularFile& file);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace headwise::io
