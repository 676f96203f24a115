#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace h3s::io {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::uintptr_t page_bytes() {
  static const auto bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::uint64_t regular_file_size(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail(Status::kIo, "{}: cannot stat: {}", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) fail(Status::kBadFile, "{}: is a directory, not a file", path);
  if (!S_ISREG(info.st_mode)) fail(Status::kBadFile, "{}: is not a regular file", path);
  return static_cast<std::uint64_t>(info.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail(Status::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  size_ = regular_file_size(file.get(), path);
  if (size_ == 0) return;  // the kernel maps no empty range
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED)
    fail(Status::kIo, "{}: cannot map {} bytes: {}", path, size_, std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::will_need(const std::byte* begin, std::uint64_t bytes) const {
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / page_bytes() * page_bytes();
  const auto last = reinterpret_cast<std::uintptr_t>(begin) + bytes;
  if (bytes > 0) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_WILLNEED);
}

void MappedFile::release(const std::byte* begin, std::uint64_t bytes) const {
  // Whole pages only: a page at the edge may hold a neighbour's bytes that are in use.
  const auto first =
      (reinterpret_cast<std::uintptr_t>(begin) + page_bytes() - 1) / page_bytes() * page_bytes();
  const auto last = (reinterpret_cast<std::uintptr_t>(begin) + bytes) / page_bytes() * page_bytes();
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace h3s::io
