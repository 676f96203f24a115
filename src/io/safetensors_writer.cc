#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"
#include "io/output_file.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"

namespace h3s::io {
namespace {

constexpr std::uint64_t kDataAlignment = 8;

std::string tensor_entry(const TensorDecl& tensor, std::uint64_t begin, std::uint64_t end) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                     nlohmann::json(tensor.name).dump(), dtype_name(tensor.dtype),
                     nlohmann::json(tensor.shape).dump(), begin, end);
}

std::string header_json(const std::string& path, const std::vector<TensorDecl>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += fmt::format("\"{}\":{}", kMetadataKey, nlohmann::json(metadata).dump());
  std::uint64_t begin = 0;
  for (const TensorDecl& tensor : tensors) {
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) fail(Status::kInvalidArgument, "{}: {}: bad shape", path, printable(tensor.name));
    if (json.size() > 1) json += ',';
    json += tensor_entry(tensor, begin, begin + *bytes);
    begin += *bytes;
  }
  json += '}';
  json.resize((json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  return json;
}

// Builds the header, then reads it back: what the reader would refuse (a name used twice, a header too long)
// is refused here, before anything is written.
std::string checked_header_json(const std::string& path, const std::vector<TensorDecl>& tensors,
                                const std::map<std::string, std::string>& metadata) {
  try {
    std::string json = header_json(path, tensors, metadata);
    if (json.size() > kMaxHeaderBytes)
      fail(Status::kInvalidArgument, "{}: header: over {} bytes", path, kMaxHeaderBytes);
    parse_header(path, json);
    return json;
  } catch (const nlohmann::json::exception&) {
    fail(Status::kInvalidArgument, "{}: header: a name or a metadata text is not UTF-8", path);
  } catch (const Error& e) {
    throw Error(Status::kInvalidArgument, e.what());
  }
}

}  // namespace

struct SafetensorsWriter::Impl {
  explicit Impl(const std::string& file_path) : path(file_path), file(file_path) {}

  std::string path;
  OutputFile file;
  std::uint64_t declared_bytes = 0, written_bytes = 0;  // of tensor data
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<TensorDecl>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  const std::string json = checked_header_json(path, tensors, metadata);
  impl_ = std::make_unique<Impl>(path);
  for (const TensorDecl& tensor : tensors) impl_->declared_bytes += *tensor_bytes(tensor.dtype, tensor.shape);
  const std::uint64_t length = json.size();
  impl_->file.reserve(sizeof length + length + impl_->declared_bytes);
  impl_->file.write(&length, sizeof length);
  impl_->file.write(json.data(), json.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const void* data, std::uint64_t bytes) {
  if (bytes > impl_->declared_bytes - impl_->written_bytes)
    fail(Status::kInvalidArgument, "{}: write: {} bytes were declared, got {} more after {}", impl_->path,
         impl_->declared_bytes, bytes, impl_->written_bytes);
  impl_->file.write(data, bytes);
  impl_->written_bytes += bytes;
}

void SafetensorsWriter::finish(const std::function<void(const std::string& path)>& check) {
  if (impl_->written_bytes != impl_->declared_bytes)
    fail(Status::kInvalidArgument, "{}: finish: {} bytes were declared, {} written", impl_->path,
         impl_->declared_bytes, impl_->written_bytes);
  if (check) check(impl_->file.temporary_path());
  impl_->file.commit();
}

}  // namespace h3s::io
