// Operands in the memory of a bench's device: random ones made there in no time, poisoned outputs, sampled
// rows back to the host.
#pragma once

#include <cstdint>
#include <vector>

#include "context.h"

namespace h3s::bench {

enum class Fill {
  kBf16,    // standard normal
  kF32,     // standard normal
  kCodes,   // int8, all 255 of [-127, 127] alike
  kPoison,  // 0xFF bytes: NaN as a float
};

class DeviceMemory {
 public:
  explicit DeviceMemory(Context& context) : context_(context) {}

  // Freed with this. Values repeat after a prime number of them, so that no two rows are alike.
  void* make(std::int64_t bytes, Fill fill, std::uint64_t seed = 0);
  float* make_floats(const std::vector<float>& values);

  void fill(void* device, std::int64_t bytes, Fill fill, std::uint64_t seed);
  // Wait for the ops before; return when the bytes are there.
  void write(void* device, const void* host, std::int64_t bytes);
  void read(void* host, const kernels::Copy2d& source);  // dense at `host`; dst of `source` is not looked at
  void read(void* host, const void* device, std::int64_t bytes);

 private:
  Context& context_;
  std::vector<mem::Buffer> buffers_;
};

}  // namespace h3s::bench
