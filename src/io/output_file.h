// A file that appears under its name whole or not at all.
#pragma once

#include <cstdint>
#include <string>

namespace h3s::io {

// Writes go to `PATH.PID.N.tmp` in the same directory; commit() flushes that to disk, renames it to PATH and
// flushes the directory. Without commit() the destructor removes it. After a kill the temporary file stays
// and may be deleted; PATH is untouched. Not thread-safe.
//
// Every failure throws Error(kIo) "PATH: what failed: system's reason" and removes the temporary file: what
// comes after it fails too.
class OutputFile {
 public:
  // Fails at once, before any work, when the directory is missing or not writable, or PATH is a directory.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Asks the file system to set aside `bytes` from the start of the file, so that a disk that is too small
  // fails now. Does nothing where the file system cannot.
  void reserve(std::uint64_t bytes);

  void write(const void* data, std::uint64_t bytes);
  void commit();

  const std::string& temporary_path() const { return temporary_path_; }

 private:
  [[noreturn]] void fail_with_errno(const std::string& action);
  void discard() noexcept;

  std::string path_, temporary_path_;
  int fd_ = -1;
};

}  // namespace h3s::io
