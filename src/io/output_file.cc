#include "io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace h3s::io {
namespace {

// Distinguishes the files of one process; stale files of a dead process with the same id are skipped over.
std::atomic<unsigned> next_serial{0};
constexpr int kMaxStaleFiles = 1000;

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void OutputFile::fail_with_errno(const std::string& action) {
  const int reason = errno;
  discard();  // what follows a failed write must not be committed
  fail(Status::kIo, "{}: cannot {}: {}", path_, action, std::strerror(reason));
}

void OutputFile::discard() noexcept {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(temporary_path_.c_str());
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    fail(Status::kIo, "{}: cannot write: it exists and is not a regular file", path);
  for (int attempt = 0; fd_ < 0 && attempt < kMaxStaleFiles; ++attempt) {
    temporary_path_ = fmt::format("{}.{}.{}.tmp", path, ::getpid(), next_serial++);
    fd_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno != EEXIST) break;
  }
  if (fd_ < 0) fail_with_errno("create a temporary file beside it");
}

OutputFile::~OutputFile() {
  discard();
}

void OutputFile::reserve(std::uint64_t bytes) {
  if (bytes == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) return;
  fail_with_errno(fmt::format("reserve {} bytes", bytes));
}

void OutputFile::write(const void* data, std::uint64_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno("write");
    next += written;
    bytes -= static_cast<std::uint64_t>(written);
  }
}

void OutputFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno("flush to disk");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0)
    fail_with_errno("rename the temporary file to it");
  const int file = std::exchange(fd_, -1);  // renamed: nothing left to remove
  if (::close(file) != 0) fail_with_errno("close");
  const int directory = ::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0)
    return;  // a directory that may be written but not read: the rename stands, only later on disk
  const int flushed = ::fsync(directory);
  const int reason = errno;
  ::close(directory);
  errno = reason;
  if (flushed != 0 && reason != EINVAL) fail_with_errno("flush the directory of");
}

}  // namespace h3s::io
