#include "exec/phase_clock.h"

namespace h3s::exec {

std::vector<PhaseSpan> PhaseClock::collect() {
  std::vector<PhaseSpan> over;
  while (!marks_.empty()) {
    const std::optional<double> passed_ms = backend_.passed_ms(marks_.front().stamp);
    if (!passed_ms) break;
    if (open_) {
      open_->end_ms = *passed_ms;
      over.push_back(*open_);
      open_.reset();
    }
    if (const auto& point = marks_.front().point) open_ = PhaseSpan{*point, *passed_ms, *passed_ms};
    marks_.pop_front();
  }
  return over;
}

}  // namespace h3s::exec
