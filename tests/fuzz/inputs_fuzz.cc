// Any bytes as an inputs file: it is accepted or refused with h3s::Error, nothing else. An accepted one is
// used as a run would use it, within a budget.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "sample/job.h"

namespace {

// Small widths, so that small files can be right.
h3s::spec::ModelSpec small_model() {
  h3s::spec::ModelSpec model;
  model.text_dim = 4;
  model.video_channels = 2;
  model.audio_channels = 2;
  return model;
}

// A file that exists in memory only.
std::string as_file(const std::uint8_t* data, std::size_t size) {
  static const int fd = ::memfd_create("inputs", 0);
  if (fd < 0 || ::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  return fmt::format("/proc/self/fd/{}", fd);
}

void use(const h3s::sample::Inputs& inputs) {
  h3s::mem::Accountant accountant(h3s::mem::make_heap_allocator());
  accountant.set_budget(h3s::mem::Space::kHost, 1 << 20);
  const auto expected = h3s::sample::Job::host_bytes(inputs, {}, false);
  h3s::sample::Job job(inputs, {}, false, accountant);
  if (accountant.peak_bytes(h3s::mem::Space::kHost) != expected.peak) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    use(h3s::sample::Inputs::open(as_file(data, size), small_model()));
  } catch (const h3s::Error&) {
  }
  return 0;
}
