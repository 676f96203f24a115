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
  inner().sync(inner().record(Queue::kCompute));
  std::map<std::string, double> total;
  double last = 0;
  for (std::size_t i = 0; i < stamps_.size(); ++i) {
    const std::optional<double> ms = inner().passed_ms(stamps_[i].second);
    H3S_ASSERT(ms.has_value());
    if (i > 0) total[stamps_[i].first] += *ms - last;
    last = *ms;
  }
  stamps_.clear();
  return total;
}

void TimedBackend::done(const std::string& op) {
  if (timing_) stamps_.emplace_back(op, inner().stamp(Queue::kCompute));
}

void TimedBackend::op(const kernels::OpCall& call, kernels::RunOp run) {
  run();
  done(call.n > 0 ? fmt::format("{} {}x{}", call.name, call.n, call.k) : call.name);
}

}  // namespace h3s::bench
