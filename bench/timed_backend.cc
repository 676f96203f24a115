#include "timed_backend.h"

#include <fmt/format.h>

#include "base/error.h"

namespace h3s::bench {

using kernels::Queue;

void TimedBackend::start() {
  timing_ = true;
  done("start");
}

std::map<std::string, double> TimedBackend::stop() {
  timing_ = false;
  inner_.sync(inner_.record(Queue::kCompute));
  std::map<std::string, double> total;
  double last = 0;
  for (std::size_t i = 0; i < stamps_.size(); ++i) {
    const std::optional<double> ms = inner_.passed_ms(stamps_[i].second);
    H3S_ASSERT(ms.has_value());
    if (i > 0) total[stamps_[i].first] += *ms - last;
    last = *ms;
  }
  stamps_.clear();
  return total;
}

void TimedBackend::done(const std::string& op) {
  if (timing_) stamps_.emplace_back(op, inner_.stamp(Queue::kCompute));
}

void TimedBackend::linear(const kernels::LinearArgs& args) {
  inner_.linear(args);
  done(fmt::format("linear {}x{}", args.n, args.k));
}
void TimedBackend::linear_int8(const kernels::LinearInt8Args& args) {
  inner_.linear_int8(args);
  done(fmt::format("linear_int8 {}x{}", args.n, args.k));
}

}  // namespace h3s::bench
