// Temporary files and hand-made safetensors for tests.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "allocation_counter.h"
#include "base/error.h"

namespace h3s {

// A directory that goes with the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "h3s_test.XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Length field, header and data as given, right or wrong.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + data;
}

// The text is one line that starts with the path and holds every piece.
inline void expect_one_line(const Error& error, Status status, const std::string& path,
                            const std::vector<std::string>& pieces) {
  const std::string text = error.what();
  EXPECT_EQ(static_cast<int>(error.status()), static_cast<int>(status)) << text;
  EXPECT_EQ(text.find('\n'), text.npos) << text;
  EXPECT_EQ(text.rfind(path + ": ", 0), 0u) << text;
  for (const std::string& piece : pieces)
    EXPECT_NE(text.find(piece), text.npos) << "no \"" << piece << "\" in: " << text;
}

// The call must throw Error(status) whose text is one line that starts with the path and holds every piece,
// and must not allocate more than the file has bytes (64 KiB, for messages and the parser, are free).
inline void expect_refused(const std::function<void()>& call, Status status, const std::string& path,
                           const std::vector<std::string>& pieces) {
  std::error_code no_file;
  const std::uintmax_t file_bytes = std::filesystem::file_size(path, no_file);
  const std::uint64_t allowed = std::max<std::uint64_t>(no_file ? 0 : file_bytes, 65536);
  const std::uint64_t before = allocated_bytes();
  try {
    call();
    ADD_FAILURE() << path << ": was accepted";
  } catch (const Error& e) {
    const std::uint64_t allocated = allocated_bytes() - before;
    expect_one_line(e, status, path, pieces);
    EXPECT_LE(allocated, allowed) << e.what();
  }
}

}  // namespace h3s
