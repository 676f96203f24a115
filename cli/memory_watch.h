// What the kernel and the driver say a run holds, beside the engine's own books.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "backend/select.h"
#include "exec/phase.h"

namespace h3s::cli {

// Looks where a block begins and where a forward ends: a forward allocates nothing, so device memory changes
// there only as kernels are loaded. Some microseconds a look on the CPU, some tens on a GPU.
class MemoryWatch final : public exec::PhaseObserver {
 public:
  // Before the run holds anything: what the program, and others on the GPU, hold already is noted here.
  explicit MemoryWatch(const backend::DeviceChoice& where);

  void enter(const exec::PhasePoint& point) override;
  void leave() override { look(); }

  std::string text() const;  // a line or two
  // Peaks in bytes; "program_bytes": anonymous memory before the run. On a GPU "device_used_bytes" is what
  // all processes hold of it, "device_bytes" what this one does, its context included; null where the driver
  // does not say what the context took.
  nlohmann::json json() const;

 private:
  void look();

  const backend::DeviceChoice where_;
  std::int64_t block_idx_ = -1;
  std::int64_t program_bytes_ = 0;
  std::int64_t anonymous_bytes_ = 0, mapped_bytes_ = 0, shared_bytes_ = 0;
  std::int64_t device_used_bytes_ = 0;
  std::optional<std::int64_t> others_bytes_;  // of the GPU, in use by other processes
};

}  // namespace h3s::cli
