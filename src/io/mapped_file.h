// A whole file mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace h3s::io {

// Owns the mapping. Nothing is read until it is touched.
// NOTE: a file that another process shortens while it is mapped raises SIGBUS on the pages that are gone;
// replace model files by renaming a new one over them, as OutputFile does, never in place.
class MappedFile {
 public:
  // Throws Error(kIo) when the system refuses, Error(kBadFile) for what is not a regular file (a directory, a
  // pipe).
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }  // null for an empty file
  std::uint64_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // Hints for the pages of [begin, begin + bytes): read ahead / drop from this process. Errors are ignored: a
  // hint changes no result.
  void will_need(const std::byte* begin, std::uint64_t bytes) const;
  void release(const std::byte* begin, std::uint64_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace h3s::io
