// Safetensors files: a memory-mapped reader that is strict by default, and a streaming writer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace h3s::io {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, relative to the data section
  std::int64_t elements() const;     // 1 for a scalar
  std::uint64_t bytes() const { return end - begin; }
};

struct TensorDecl {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};

struct ReadOptions {
  // Accept bytes after the last tensor (a known community file has 65 of them). Everything else stays strict.
  bool allow_trailing_bytes = false;
};

// An open file. Opening parses the header and touches no tensor data; data is mapped read-only and paged in
// when read. Copyable (shares the mapping); thread-safe. Pointers from data() live as long as any copy.
class SafetensorsReader {
 public:
  // Throws Error(kIo) when the file cannot be opened and Error(kBadFile), naming file, key and reason in one
  // line, for every malformed file. Before that it allocates nothing but the parsed header: a small multiple
  // of the header's bytes, which are fewer than the file's. A path that ends in ".index.json" is the index of
  // several files, which are opened as one: every key must be in the file the index names, and no other.
  static SafetensorsReader open(const std::string& path, const ReadOptions& options = {});

  // A table of tensors without a file, laid out one after another: for planning. `name` stands for the path.
  // Throws Error(kInvalidArgument) for a shape that no tensor has.
  static SafetensorsReader without_data(const std::string& name, const std::vector<TensorDecl>& tensors);

  const std::string& path() const;
  bool has_data() const;
  // Paths of the files it is read from: the shards, after them their index. None without data.
  std::vector<std::string> files() const;
  std::uint64_t file_bytes() const;
  std::uint64_t trailing_bytes() const;
  const std::vector<TensorInfo>& tensors() const;              // in the order of their data; files by name
  const std::map<std::string, std::string>& metadata() const;  // "__metadata__"
  const TensorInfo* find(std::string_view name) const;         // null when absent
  const TensorInfo& at(std::string_view name) const;           // throws Error(kBadFile) naming file and key
  // First byte of the tensor; may be unaligned for its type. Without data: an address that must not be
  // read, aligned as the tensor would be in a file.
  const std::byte* data(const TensorInfo& info) const;

  // Hints to the kernel for the pages of a byte range of the mapping: read soon / not needed by this process.
  void will_need(const std::byte* data, std::uint64_t bytes) const;
  void release_pages(const std::byte* data, std::uint64_t bytes) const;

 private:
  struct Impl;
  static void open_index(const std::string& path, const ReadOptions& options, Impl& impl);
  std::shared_ptr<const Impl> impl_;
};

// Writes a file tensor by tensor in bounded memory. Data goes to a temporary file beside `path`; finish()
// flushes it to disk and renames it, so the final name never holds a half file: not after an exception, a
// full disk or a kill. Tensors are laid out in the order declared; write() must supply exactly the bytes
// declared, in that order, in pieces of any size.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<TensorDecl>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();  // removes the temporary file when finish() was not reached
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(const void* data, std::uint64_t bytes);
  // `check` is given the whole file under its temporary name; when it throws, nothing appears or is replaced.
  void finish(const std::function<void(const std::string& path)>& check = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace h3s::io
