#include "ledger/directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "ledger/reader.h"

namespace h3s::ledger {
namespace {

namespace fs = std::filesystem;

void make_folder(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error))
    fail(Status::kInvalidArgument, "{}: expected a directory for the ledger, it is a file", path);
  fs::create_directory(path, error);  // no error when it is there
  if (error) fail(Status::kIo, "{}: cannot make a directory for the ledger: {}", path, error.message());
}

int create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (fd >= 0) return fd;
  if (errno == EEXIST)
    fail(Status::kInvalidArgument, "{}: exists already; give the ledger a directory of its own", path);
  fail(Status::kIo, "{}: cannot create it: {}", path, std::strerror(errno));
}

}  // namespace

Directory::Directory(const std::string& path) : path_(path), ledger_path_(ledger::ledger_path(path)) {
  make_folder(path);
  ::close(create(page_path()));
  try {
    fd_ = create(ledger_path_);
  } catch (...) {
    ::unlink(page_path().c_str());
    throw;
  }
}

Directory::~Directory() {
  ::close(fd_);
}

std::string Directory::page_path() const {
  return (fs::path(path_) / "index.html").string();
}

void Directory::append(const std::string& lines) {
  const char* next = lines.data();
  std::size_t left = lines.size();
  while (left > 0) {
    const ssize_t written = ::write(fd_, next, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(Status::kIo, "{}: cannot write: {}", ledger_path_, std::strerror(errno));
    next += written;
    left -= static_cast<std::size_t>(written);
  }
}

}  // namespace h3s::ledger
