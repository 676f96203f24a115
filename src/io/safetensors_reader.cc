#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"

namespace h3s::io {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

constexpr std::uint64_t kLengthBytes = 8;  // the header's length field

// Files that are often met under a safetensors name, by their first bytes.
struct Lookalike {
  std::string_view magic, reason;
};
constexpr std::array<Lookalike, 5> kLookalikes{{
    {"version https://git-lfs", "is a Git LFS pointer, not the file itself: run `git lfs pull`"},
    {"GGUF", "is a GGUF file, not safetensors"},
    {"PK\x03\x04", "is a zip archive (a PyTorch .pt or .ckpt?), not safetensors"},
    {"<!DOCTYPE", "is a web page, not safetensors: the download went wrong"},
    {"<html", "is a web page, not safetensors: the download went wrong"},
}};

void refuse_lookalikes(const std::string& path, std::string_view text) {
  for (const Lookalike& other : kLookalikes)
    if (text.substr(0, other.magic.size()) == other.magic)
      fail(Status::kBadFile, "{}: file: {}", path, other.reason);
}

// The header's length, checked before anything is allocated for it.
std::uint64_t header_bytes(const std::string& path, std::string_view text) {
  if (text.size() < kLengthBytes)
    fail(Status::kBadFile, "{}: header: the file has {} bytes, the length field alone needs {}", path,
         text.size(), kLengthBytes);
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), kLengthBytes);
  if (length > kMaxHeaderBytes)
    fail(Status::kBadFile, "{}: header: length {} is over the limit of {} bytes: not a safetensors file",
         path, length, kMaxHeaderBytes);
  if (length > text.size() - kLengthBytes)
    fail(Status::kBadFile,
         "{}: header: the file is truncated: the header has {} bytes, {} of them are missing", path, length,
         length - (text.size() - kLengthBytes));
  return length;
}

void check_data_size(const std::string& path, const Header& header, std::uint64_t data_bytes,
                     const ReadOptions& options) {
  if (data_bytes < header.data_bytes) {
    const auto cut = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [&](const TensorInfo& tensor) { return tensor.end > data_bytes; });
    fail(Status::kBadFile, "{}: {}: the file is truncated: {} bytes are missing, from this tensor on", path,
         printable(cut->name), header.data_bytes - data_bytes);
  }
  if (data_bytes > header.data_bytes && !options.allow_trailing_bytes)
    fail(Status::kBadFile,
         "{}: data: {} bytes follow the last tensor; if you trust the file, accept them with "
         "--allow-trailing-bytes",
         path, data_bytes - header.data_bytes);
}

}  // namespace

struct SafetensorsReader::Impl {
  std::string path;
  std::optional<MappedFile> file;  // empty: a table of tensors alone
  Header header;
  const std::byte* data = nullptr;  // first byte after the header
};

SafetensorsReader SafetensorsReader::open(const std::string& path, const ReadOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  const std::string_view text = impl->file.emplace(path).text();
  refuse_lookalikes(path, text);
  const std::uint64_t length = header_bytes(path, text);
  impl->header = parse_header(path, text.substr(kLengthBytes, length));
  check_data_size(path, impl->header, text.size() - kLengthBytes - length, options);
  impl->data = impl->file->data() + kLengthBytes + length;
  SafetensorsReader reader;
  reader.impl_ = std::move(impl);
  return reader;
}

SafetensorsReader SafetensorsReader::without_data(const std::string& name,
                                                  const std::vector<TensorDecl>& tensors) {
  auto impl = std::make_shared<Impl>();
  impl->path = name;
  Header& header = impl->header;
  for (const TensorDecl& tensor : tensors) {
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) fail(Status::kInvalidArgument, "{}: {}: bad shape", name, printable(tensor.name));
    const std::uint64_t begin = header.data_bytes;
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, begin, header.data_bytes += *bytes});
  }
  header.by_name.resize(header.tensors.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0);
  std::sort(header.by_name.begin(), header.by_name.end(), [&](std::uint32_t a, std::uint32_t b) {
    return header.tensors[a].name < header.tensors[b].name;
  });
  SafetensorsReader reader;
  reader.impl_ = std::move(impl);
  return reader;
}

bool SafetensorsReader::has_data() const {
  return impl_->file.has_value();
}

const std::string& SafetensorsReader::path() const {
  return impl_->path;
}

std::uint64_t SafetensorsReader::file_bytes() const {
  return impl_->file ? impl_->file->size() : impl_->header.data_bytes;
}

std::uint64_t SafetensorsReader::trailing_bytes() const {
  if (!impl_->file) return 0;
  const auto before_data = static_cast<std::uint64_t>(impl_->data - impl_->file->data());
  return file_bytes() - before_data - impl_->header.data_bytes;
}

const std::vector<TensorInfo>& SafetensorsReader::tensors() const {
  return impl_->header.tensors;
}

const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return impl_->header.metadata;
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const Header& header = impl_->header;
  const auto found = std::lower_bound(
      header.by_name.begin(), header.by_name.end(), name,
      [&](std::uint32_t idx, std::string_view wanted) { return header.tensors[idx].name < wanted; });
  if (found == header.by_name.end() || header.tensors[*found].name != name) return nullptr;
  return &header.tensors[*found];
}

const TensorInfo& SafetensorsReader::at(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) fail(Status::kBadFile, "{}: {}: the key is missing", path(), printable(name));
  return *info;
}

const std::byte* SafetensorsReader::data(const TensorInfo& info) const {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(impl_->data) + info.begin);
}

void SafetensorsReader::will_need(const std::byte* data, std::uint64_t bytes) const {
  if (impl_->file) impl_->file->will_need(data, bytes);
}

void SafetensorsReader::release_pages(const std::byte* data, std::uint64_t bytes) const {
  if (impl_->file) impl_->file->release(data, bytes);
}

}  // namespace h3s::io
