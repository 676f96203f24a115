// Any bytes as a safetensors file and as a checkpoint: the readers must either load them or throw h3s::Error
// with one line, and everything a loaded file names must lie inside it (the sanitizers see the rest).
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats.h"
#include "checkpoint/report.h"
#include "io/safetensors.h"

namespace {

// A file in memory that has a path.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(::memfd_create("fuzz", 0)) {
    if (fd_ < 0 || ::write(fd_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename Body>
void refuse_or_run(const Body& body) {
  try {
    body();
  } catch (const h3s::Error& e) {
    require(e.status() == h3s::Status::kBadFile || e.status() == h3s::Status::kUnsupported);
    require(std::string(e.what()).find('\n') == std::string::npos);
  }
}

// Touches the first and last byte of every tensor.
void touch_tensors(const h3s::io::SafetensorsReader& file) {
  volatile std::byte sink{};
  for (const h3s::io::TensorInfo& info : file.tensors()) {
    require(file.find(info.name) == &info);
    if (info.bytes() == 0) continue;
    sink = file.data(info)[0];
    sink = file.data(info)[info.bytes() - 1];
  }
  static_cast<void>(sink);
}

// First and last row of every quantised layer, by every function of its format.
void decode_rows(const h3s::checkpoint::Checkpoint& checkpoint) {
  for (const auto& part : h3s::checkpoint::model_parts(checkpoint.spec())) {
    if (!h3s::checkpoint::is_linear(part.kind)) continue;
    const auto source = checkpoint.linear(part.name);
    if (source.plain()) continue;
    const h3s::checkpoint::StoredLayer stored(checkpoint.file(), source);
    const auto& rows = h3s::checkpoint::format_row(source.format).rows;
    const auto k = static_cast<std::size_t>(source.k);
    std::vector<std::int8_t> codes(k);
    std::vector<h3s::BF16> values(k);
    std::vector<float> weights(k);
    for (const std::int64_t row : {std::int64_t{0}, source.n - 1}) {
      if (rows.codes != nullptr) rows.codes(stored, row, codes.data());
      if (rows.values != nullptr) rows.values(stored, row, values.data());
      rows.dequantize(stored, row, h3s::DType::kBF16, weights.data());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const MemoryFile file(data, size);
  const std::string path = file.path();
  for (const bool allow_trailing : {false, true})
    refuse_or_run([&] {
      touch_tensors(h3s::io::SafetensorsReader::open(path, {.allow_trailing_bytes = allow_trailing}));
    });
  refuse_or_run([&] { decode_rows(h3s::checkpoint::Checkpoint::open(path)); });
  refuse_or_run([&] { h3s::checkpoint::describe(path, {}); });
  return 0;
}
