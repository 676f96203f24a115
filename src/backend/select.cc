#include "backend/select.h"

#include <charconv>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace h3s::backend {
namespace {

// Kernels loaded later, local memory, launch buffers and the driver's granules of 2 MiB, beside what the
// accountant sees; the context itself is no longer among what is free. 12 MiB were seen on an H200.
constexpr std::int64_t kDriverMarginBytes = std::int64_t{512} << 20;

int parse_gpu(const std::string& text) {
  constexpr std::string_view kPrefix = "cuda:";
  int number = -1;
  const char* end = text.data() + text.size();
  if (text.starts_with(kPrefix)) {
    const auto [parsed, error] = std::from_chars(text.data() + kPrefix.size(), end, number);
    if (error == std::errc{} && parsed == end && number >= 0) return number;
  }
  fail(Status::kInvalidArgument, "[device] expected auto, cpu or cuda:N, got \"{}\"", text);
}

// Of what describe() and kernels_name() say.
const char* kernels_word(const DeviceChoice& device) {
  return device.reference ? "reference" : device.portable ? "portable" : "";
}

cuda::Kernels kernels_of(const DeviceChoice& device) {
  if (device.reference) return cuda::Kernels::kReference;
  return device.portable ? cuda::Kernels::kPortable : cuda::Kernels::kFast;
}

void require_gpu(int number) {
  const std::size_t count = cuda::devices().size();
  if (count == 0)
    fail(Status::kUnsupported, "[device] cuda:{} cannot be used: {}", number, cuda::why_no_device());
  if (static_cast<std::size_t>(number) >= count)
    fail(Status::kUnsupported, "[device] cuda:{} is not there: this machine has {} GPU{}", number, count,
         count == 1 ? "" : "s");
}

}  // namespace

DeviceChoice parse_device(const std::string& text, int threads) {
  DeviceChoice choice{.threads = threads};
  if (text == "cpu") return choice;
  if (text == "auto") {
    if (!cuda::devices().empty()) choice.cuda = 0;
    return choice;
  }
  choice.cuda = parse_gpu(text);
  require_gpu(choice.cuda);
  return choice;
}

std::string describe(const DeviceChoice& device) {
  if (device.on_cpu()) return "cpu";
  const cuda::DeviceInfo info = cuda::devices()[static_cast<std::size_t>(device.cuda)];
  const std::string word = kernels_word(device);
  return fmt::format("cuda:{} ({}, sm_{}{})", device.cuda, info.name, info.sm,
                     word.empty() ? "" : ", " + word + " kernels");
}

std::string kernels_name(const DeviceChoice& device) {
  if (device.on_cpu()) return "cpu";
  const int sm = cuda::devices()[static_cast<std::size_t>(device.cuda)].sm;
  const std::string word = kernels_word(device);
  return fmt::format("cuda sm_{}{}", sm, word.empty() ? "" : " " + word);
}

Gpu gpu(const DeviceChoice& device) {
  H3S_ASSERT(!device.on_cpu());
  return cuda::devices()[static_cast<std::size_t>(device.cuda)];
}

std::unique_ptr<mem::RawAllocator> make_allocator(const DeviceChoice& device, Warning warning, bool poison) {
  if (device.on_cpu()) return mem::make_heap_allocator(poison);
  return cuda::make_allocator(device.cuda, std::move(warning), poison);
}

std::unique_ptr<kernels::Backend> make_backend(const DeviceChoice& device, mem::Accountant& accountant) {
  if (device.on_cpu()) return cpu::make_backend(device.threads, accountant);
  return cuda::make_backend(device.cuda, accountant, kernels_of(device), device.compute_stream);
}

std::int64_t workspace_bytes(const DeviceChoice& device) {
  return device.on_cpu() ? cpu::workspace_bytes(device.threads) : cuda::workspace_bytes();
}

bool device_is_host(const DeviceChoice& device) {
  return device.on_cpu();
}

std::optional<DeviceState> device_state(const DeviceChoice& device) {
  if (device.on_cpu()) return std::nullopt;
  return cuda::device_state(device.cuda);
}

std::optional<std::int64_t> context_bytes(const DeviceChoice& device) {
  if (device.on_cpu()) return std::nullopt;
  return cuda::context_bytes(device.cuda);
}

std::int64_t default_device_budget(const DeviceChoice& device) {
  if (device.on_cpu()) return mem::kUnlimited;
  return cuda::free_bytes(device.cuda) - kDriverMarginBytes;
}

}  // namespace h3s::backend
