#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"
#include "io/safetensors_index.h"

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
    {"GGUF",
     "is a GGUF file, which this program does not read: take the safetensors file of the same model; "
     "`h3stream convert` makes a smaller one of it"},
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

// Positions in `tensors`, names ascending.
std::vector<std::uint32_t> sorted_by_name(const std::vector<TensorInfo>& tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

const TensorInfo* find_tensor(const Header& header, std::string_view name) {
  const auto found = std::lower_bound(
      header.by_name.begin(), header.by_name.end(), name,
      [&](std::uint32_t idx, std::string_view wanted) { return header.tensors[idx].name < wanted; });
  if (found == header.by_name.end() || header.tensors[*found].name != name) return nullptr;
  return &header.tensors[*found];
}

// One file of the checkpoint.
struct Shard {
  MappedFile file;
  const std::byte* data = nullptr;  // first byte after the header
  std::uint64_t base = 0;           // of its data among the data of all shards
  std::uint64_t trailing = 0;       // bytes after the last tensor

  explicit Shard(const std::string& path) : file(path) {}
};

Header open_shard(const std::string& path, const ReadOptions& options, Shard& shard) {
  const std::string_view text = shard.file.text();
  refuse_lookalikes(path, text);
  const std::uint64_t length = header_bytes(path, text);
  Header header = parse_header(path, text.substr(kLengthBytes, length));
  check_data_size(path, header, text.size() - kLengthBytes - length, options);
  shard.data = shard.file.data() + kLengthBytes + length;
  shard.trailing = text.size() - kLengthBytes - length - header.data_bytes;
  return header;
}

// Appends the tensors of `from`, whose file is `name`, to those of the checkpoint.
void add_shard(const std::string& path, const std::map<std::string, std::string>& index,
               const std::string& name, const Header& from, Header& all) {
  for (TensorInfo info : from.tensors) {
    const auto entry = index.find(info.name);
    if (entry == index.end() || entry->second != name)
      fail(Status::kBadFile, "{}: {}: is in {}, but the index {}", path, printable(info.name),
           printable(name),
           entry == index.end() ? "does not have it" : "places it in " + printable(entry->second));
    info.begin += all.data_bytes;
    info.end += all.data_bytes;
    all.tensors.push_back(std::move(info));
  }
  all.metadata.insert(from.metadata.begin(), from.metadata.end());
  all.data_bytes += from.data_bytes;
}

}  // namespace

struct SafetensorsReader::Impl {
  std::string path;
  std::vector<std::unique_ptr<Shard>> shards;  // in the order of their data; empty: a table of tensors alone
  std::vector<std::string> files;
  Header header;
};

SafetensorsReader SafetensorsReader::open(const std::string& path, const ReadOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  if (is_safetensors_index(path)) {
    open_index(path, options, *impl);
  } else {
    impl->shards.push_back(std::make_unique<Shard>(path));
    impl->files.push_back(path);
    impl->header = open_shard(path, options, *impl->shards.front());
  }
  SafetensorsReader reader;
  reader.impl_ = std::move(impl);
  return reader;
}

void SafetensorsReader::open_index(const std::string& path, const ReadOptions& options, Impl& impl) {
  const std::map<std::string, std::string> index = read_safetensors_index(path);
  std::set<std::string> names;
  for (const auto& [key, name] : index) names.insert(name);
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  for (const std::string& name : names) {
    auto shard = std::make_unique<Shard>(folder + name);
    shard->base = impl.header.data_bytes;
    add_shard(path, index, name, open_shard(folder + name, options, *shard), impl.header);
    impl.shards.push_back(std::move(shard));
    impl.files.push_back(folder + name);
  }
  impl.files.push_back(path);
  impl.header.by_name = sorted_by_name(impl.header.tensors);
  if (impl.header.tensors.size() == index.size()) return;
  for (const auto& [key, name] : index)
    if (find_tensor(impl.header, key) == nullptr)
      fail(Status::kBadFile, "{}: {}: the index places it in {}, which does not have it", path,
           printable(key), printable(name));
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
  header.by_name = sorted_by_name(header.tensors);
  SafetensorsReader reader;
  reader.impl_ = std::move(impl);
  return reader;
}

bool SafetensorsReader::has_data() const {
  return !impl_->shards.empty();
}

const std::string& SafetensorsReader::path() const {
  return impl_->path;
}

std::vector<std::string> SafetensorsReader::files() const {
  return impl_->files;
}

std::uint64_t SafetensorsReader::file_bytes() const {
  if (!has_data()) return impl_->header.data_bytes;
  std::uint64_t bytes = 0;
  for (const auto& shard : impl_->shards) bytes += shard->file.size();
  return bytes;
}

std::uint64_t SafetensorsReader::trailing_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& shard : impl_->shards) bytes += shard->trailing;
  return bytes;
}

const std::vector<TensorInfo>& SafetensorsReader::tensors() const {
  return impl_->header.tensors;
}

const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return impl_->header.metadata;
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  return find_tensor(impl_->header, name);
}

const TensorInfo& SafetensorsReader::at(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) fail(Status::kBadFile, "{}: {}: the key is missing", path(), printable(name));
  return *info;
}

const std::byte* SafetensorsReader::data(const TensorInfo& info) const {
  const std::byte* data = nullptr;
  std::uint64_t base = 0;
  for (const auto& shard : impl_->shards) {  // the last one that begins no later: few, and mostly one
    if (shard->base > info.begin) break;
    data = shard->data;
    base = shard->base;
  }
  return reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(data) + (info.begin - base));
}

void SafetensorsReader::will_need(const std::byte* data, std::uint64_t bytes) const {
  if (has_data()) impl_->shards.front()->file.will_need(data, bytes);  // whose pages does not matter
}

void SafetensorsReader::release_pages(const std::byte* data, std::uint64_t bytes) const {
  if (has_data()) impl_->shards.front()->file.release(data, bytes);
}

}  // namespace h3s::io
