// TensorFile: one face for the three formats. What a format knows of a tensor becomes a Place; how
// the elements of a Place get into memory is the same for all.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "headwise/io.h"
#include "io/npy.h"
#include "io/npz.h"
#include "io/refusal.h"
#include "io/regular_file.h"
#include "io/safetensors.h"

namespace headwise {
namespace {

using io::Refusal;

struct Place {
  std::uint64_t begin = 0;  // of the elements, from the start of the file
  bool big_endian = false;
  bool fortran_order = false;
  bool deflated = false;
  bool trusted = true;  // false: a checksum is still to be verified
};

void reverse_bytes(std::span<std::byte> bytes, std::size_t width) {
  for (std::size_t i = 0; i + width <= bytes.size(); i += width)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                 bytes.begin() + static_cast<std::ptrdiff_t>(i + width));
}

Strides fortran_strides(const Shape& shape) {
  Strides strides = contiguous_strides(shape);
  std::size_t step = 1;  // may wrap around, but only in a shape without elements
  for (std::size_t i = 0; i < shape.size(); ++i) {
    strides[i] = static_cast<std::ptrdiff_t>(step);
    step *= shape[i];  // as above
  }
  return strides;
}

// As many of the first `bytes` as the file has.
std::vector<std::byte> read_start(const io::RegularFile& file, std::uint64_t bytes) {
  std::vector<std::byte> start(std::min(bytes, file.size()));
  file.read(0, start);
  return start;
}

}  // namespace

struct TensorFile::State {
  std::string path;
  Format format = Format::safetensors;
  std::vector<TensorInfo> infos;
  std::vector<Place> places;  // one per info
  std::unordered_map<std::string_view, std::size_t> index;
  std::map<std::string, std::string> metadata;
  std::vector<io::npz::Array> arrays;  // of an .npz, one per info
  io::Mapping mapping;

  std::mutex mutex;  // guards copies and the places' `trusted`
  std::map<std::size_t, Buffer> copies;

  void read(const io::RegularFile& file);
  void read_safetensors(const io::RegularFile& file);
  void read_npy(const io::RegularFile& file);
  void read_npz(const io::RegularFile& file);
  Buffer copy_of(std::size_t i) const;
  const std::byte* elements(std::size_t i);
  ConstTensorView view(const std::string& name);
};

void TensorFile::State::read(const io::RegularFile& file) {
  const auto start = read_start(file, io::npy::kMagicBytes);
  if (io::npy::has_magic(start))
    read_npy(file);
  else if (io::zip::has_magic(start))
    read_npz(file);
  else
    read_safetensors(file);
  for (std::size_t i = 0; i < infos.size(); ++i) index.emplace(infos[i].name, i);
}

void TensorFile::State::read_safetensors(const io::RegularFile& file) {
  format = Format::safetensors;
  const auto first = read_start(file, io::safetensors::kLengthBytes);
  const auto start = read_start(file, io::safetensors::header_bytes(first, file.size()));
  io::safetensors::Contents contents = io::safetensors::parse(start, file.size());
  mapping = io::Mapping(file);
  infos.reserve(contents.records.size());
  places.reserve(contents.records.size());
  for (const io::safetensors::Record& record : contents.records) {
    infos.push_back({std::string(contents.name_of(record)), std::string(record.dtype->name),
                     record.dtype->type, contents.shape_of(record), record.end - record.begin});
    places.push_back({contents.data_begin + record.begin, false, false});  // inside the file
  }
  metadata = std::move(contents.metadata);
}

void TensorFile::State::read_npy(const io::RegularFile& file) {
  format = Format::npy;
  const auto first = read_start(file, io::npy::kMaxPrefix);
  const auto start = read_start(file, io::npy::header_bytes(first, file.size()));
  const io::npy::Contents contents = io::npy::parse(start, file.size());
  mapping = io::Mapping(file);
  infos.push_back({"", contents.descr, contents.type, contents.shape, contents.data_bytes});
  places.push_back({contents.data_begin, contents.big_endian, contents.fortran_order});
}

void TensorFile::State::read_npz(const io::RegularFile& file) {
  format = Format::npz;
  arrays = io::npz::parse(file);
  mapping = io::Mapping(file);
  infos.reserve(arrays.size());
  places.reserve(arrays.size());
  for (const io::npz::Array& array : arrays) {
    const io::npy::Contents& contents = array.contents;
    infos.push_back(
        {array.name, contents.descr, contents.type, contents.shape, contents.data_bytes});
    Place place{array.member.data_begin, contents.big_endian, contents.fortran_order};
    place.deflated = array.member.method == io::zip::kDeflated;
    place.begin += contents.data_begin;  // within the member, so within the file when stored
    place.trusted = false;
    places.push_back(place);
  }
}

Buffer TensorFile::State::copy_of(std::size_t i) const {
  if (places[i].deflated)
    return io::npz::inflate_elements(io::SpanSource(mapping.bytes()), arrays[i]);
  Buffer copy(infos[i].bytes);
  const auto mapped = mapping.bytes().subspan(places[i].begin, copy.size());
  std::copy(mapped.begin(), mapped.end(), copy.data());
  return copy;
}

// Mapped where the bytes can be used as they lie, else copied once.
const std::byte* TensorFile::State::elements(std::size_t i) {
  const TensorInfo& info = infos[i];
  Place& place = places[i];
  if (info.bytes == 0) return nullptr;
  const std::lock_guard lock(mutex);
  if (!place.trusted && !place.deflated) {
    io::npz::check_stored(mapping.bytes(), arrays[i]);
    place.trusted = true;
  }
  const std::size_t width = size_of(*info.type);
  if (!place.deflated && !place.big_endian) {
    const std::byte* mapped = mapping.bytes().subspan(place.begin, info.bytes).data();
    if (reinterpret_cast<std::uintptr_t>(mapped) % width == 0) return mapped;
  }
  const auto before = copies.find(i);
  if (before != copies.end()) return before->second.data();
  Buffer copy = copy_of(i);
  if (place.big_endian) reverse_bytes({copy.data(), copy.size()}, width);
  return copies.emplace(i, std::move(copy)).first->second.data();
}

ConstTensorView TensorFile::State::view(const std::string& name) {
  const auto found = index.find(name);
  if (found == index.end()) throw Refusal("no tensor of this name", "one of the file's", name);
  const TensorInfo& info = infos[found->second];
  if (!info.type)
    throw Refusal("dtype " + info.dtype, "a dtype that headwise can compute with", name);
  if (info.shape.size() > kMaxRank)
    throw Refusal(std::to_string(info.shape.size()) + " dims",
                  "at most " + std::to_string(kMaxRank), name);
  const Shape shape(info.shape.begin(), info.shape.end());
  const Strides strides =
      places[found->second].fortran_order ? fortran_strides(shape) : contiguous_strides(shape);
  return {elements(found->second), *info.type, shape, strides};
}

TensorFile::TensorFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorFile::~TensorFile() = default;
TensorFile::TensorFile(TensorFile&&) noexcept = default;
TensorFile& TensorFile::operator=(TensorFile&&) noexcept = default;

TensorFile TensorFile::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  try {
    state->read(io::RegularFile(path));
  } catch (const Refusal& refusal) {
    throw io::file_error(path, refusal);
  }
  return TensorFile(std::move(state));
}

TensorFile::Format TensorFile::format() const { return state_->format; }
const std::string& TensorFile::path() const { return state_->path; }
const std::vector<TensorInfo>& TensorFile::tensors() const { return state_->infos; }
const std::map<std::string, std::string>& TensorFile::metadata() const { return state_->metadata; }

const TensorInfo* TensorFile::find(const std::string& name) const {
  const auto found = state_->index.find(name);
  return found == state_->index.end() ? nullptr : &state_->infos[found->second];
}

ConstTensorView TensorFile::view(const std::string& name) const {
  try {
    return state_->view(name);
  } catch (const Refusal& refusal) {
    throw io::file_error(state_->path, refusal);
  }
}

}  // namespace headwise
