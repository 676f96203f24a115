#include "op_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace h3s::bench {
namespace {

using Role = Operand::Role;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kSampledRows = 2;

std::int64_t total_bytes(const Operand& o, std::int64_t rows) {
  return o.role == Role::kShared ? o.row_bytes : o.planes * rows * o.row_bytes;
}

bool is_output(const Operand& o) {
  return o.role == Role::kOutput || o.role == Role::kInOut;
}

// The last rows of every plane, or all of a shared operand.
Bytes sample(DeviceMemory& memory, const Operand& o, const void* device, std::int64_t rows,
             std::int64_t sampled) {
  Bytes host(static_cast<std::size_t>(total_bytes(o, sampled)));
  if (o.role == Role::kShared) {
    memory.read(host.data(), device, o.row_bytes);
  } else {
    const auto* first = static_cast<const std::byte*>(device) + (rows - sampled) * o.row_bytes;
    memory.read(host.data(), {nullptr, 0, first, rows * o.row_bytes, sampled * o.row_bytes, o.planes});
  }
  return host;
}

template <typename T>
double rel_rms(const Bytes& got, const Bytes& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, &got[i], sizeof(T));
    std::memcpy(&b, &want[i], sizeof(T));
    const double x = static_cast<double>(to_float(a)), y = static_cast<double>(to_float(b));
    error += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(error / norm);
}

void compare(const OpCase& c, const Operand& o, const Bytes& got, const Bytes& want) {
  const std::string what = fmt::format("{} {} ({})", c.row.group, c.row.name, c.row.shape);
  if (c.tolerance == 0) return check(got == want, what + " has the bits of its definition");
  const double error = o.fill == Fill::kF32 ? rel_rms<float>(got, want) : rel_rms<BF16>(got, want);
  check(error <= c.tolerance,  // false for a NaN
        fmt::format("{} is within {} of its definition, got {}", what, c.tolerance, error));
}

void check_case(Context& context, const OpCase& c, DeviceMemory& memory, const std::vector<void*>& device) {
  const std::int64_t sampled = std::min(kSampledRows, c.rows);
  std::vector<Bytes> host;
  std::vector<void*> pointers;
  for (std::size_t i = 0; i < device.size(); ++i) {
    host.push_back(sample(memory, c.operands[i], device[i], c.rows, sampled));
    pointers.push_back(host.back().data());
  }
  c.run(context.backend(), device, c.rows);
  c.run(context.definition(), pointers, sampled);
  for (std::size_t i = 0; i < device.size(); ++i)
    if (is_output(c.operands[i]))
      compare(c, c.operands[i], sample(memory, c.operands[i], device[i], c.rows, sampled), host[i]);
}

}  // namespace

void run_case(Context& context, const OpCase& c, const std::function<void()>& theirs) {
  DeviceMemory memory(context);
  std::vector<void*> device;
  for (const Operand& o : c.operands)
    device.push_back(memory.make(total_bytes(o, c.rows), o.role == Role::kOutput ? Fill::kPoison : o.fill,
                                 device.size() + 1));
  check_case(context, c, memory, device);
  context.measure(
      c.row, [&] { c.run(context.backend(), device, c.rows); }, theirs);
}

}  // namespace h3s::bench
