// Times of the phases on the device, read from stamps when they have passed: nothing waits for the device.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "exec/phase.h"
#include "kernels/backend.h"

namespace h3s::exec {

// One visit to a phase: from when the compute queue came to its first work until it came to the next phase's.
struct PhaseSpan {
  PhasePoint point;
  double begin_ms = 0, end_ms = 0;  // on the backend's clock
};

class PhaseClock final : public PhaseObserver {
 public:
  explicit PhaseClock(kernels::Backend& backend) : backend_(backend) {}

  void enter(const PhasePoint& point) override { mark(point); }
  void leave() override { mark(std::nullopt); }

  // The visits that are over and not yet given, in order.
  std::vector<PhaseSpan> collect();

 private:
  struct Mark {
    std::optional<PhasePoint> point;  // what begins here, if anything
    kernels::Stamp stamp;
  };
  void mark(std::optional<PhasePoint> point) {
    marks_.push_back({point, backend_.stamp(kernels::Queue::kCompute)});
  }

  kernels::Backend& backend_;
  std::deque<Mark> marks_;         // not known to have passed
  std::optional<PhaseSpan> open_;  // begun, its end not known to have passed
};

}  // namespace h3s::exec
