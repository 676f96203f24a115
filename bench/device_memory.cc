#include "device_memory.h"

#include <algorithm>
#include <cstring>

namespace h3s::bench {
namespace {

using kernels::Queue;

constexpr std::int64_t kPattern = 1'048'573;  // values; a prime: rows of any width start at another one

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto* begin = reinterpret_cast<const std::byte*>(values.data());
  return {begin, begin + values.size() * sizeof(T)};
}

std::vector<std::byte> pattern(Fill fill, std::uint64_t seed) {
  switch (fill) {
    case Fill::kBf16:
      return bytes_of(to_bf16(random_floats(kPattern, seed)));
    case Fill::kF32:
      return bytes_of(random_floats(kPattern, seed));
    case Fill::kCodes:
      return bytes_of(random_codes(kPattern, seed, -127, 127));
    case Fill::kPoison:
      break;
  }
  return std::vector<std::byte>(std::size_t{1} << 20, std::byte{0xFF});
}

}  // namespace

void* DeviceMemory::make(std::int64_t bytes, Fill kind, std::uint64_t seed) {
  buffers_.push_back(context_.accountant().allocate(mem::Space::kDevice, bytes, "operands of the bench"));
  fill(buffers_.back().data(), bytes, kind, seed);
  return buffers_.back().data();
}

float* DeviceMemory::make_floats(const std::vector<float>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  void* device = make(bytes, Fill::kPoison);
  write(device, values.data(), bytes);
  return static_cast<float*>(device);
}

// One pattern from the host; what is there already is then copied behind itself.
void DeviceMemory::fill(void* device, std::int64_t bytes, Fill kind, std::uint64_t seed) {
  const std::vector<std::byte> values = pattern(kind, seed);
  std::int64_t done = std::min<std::int64_t>(bytes, static_cast<std::int64_t>(values.size()));
  write(device, values.data(), done);
  while (done < bytes) {
    const std::int64_t more = std::min(done, bytes - done);
    context_.backend().copy({static_cast<std::byte*>(device) + done, more, device, more, more, 1},
                            Queue::kCompute);
    done += more;
  }
  context_.sync();
}

void DeviceMemory::write(void* device, const void* host, std::int64_t bytes) {
  context_.backend().copy({device, bytes, host, bytes, bytes, 1}, Queue::kCompute);
  context_.sync();
}

void DeviceMemory::read(void* host, const kernels::Copy2d& source) {
  kernels::Copy2d copy = source;
  copy.dst = host;
  copy.dst_pitch_bytes = source.row_bytes;
  context_.backend().copy(copy, Queue::kCompute);
  context_.sync();
}

void DeviceMemory::read(void* host, const void* device, std::int64_t bytes) {
  read(host, {nullptr, 0, device, bytes, bytes, 1});
}

}  // namespace h3s::bench
