#include "exec/traffic.h"

#include <algorithm>
#include <numeric>

namespace h3s::exec {

std::int64_t Traffic::up_bytes() const {
  return std::accumulate(lines.begin(), lines.end(), std::int64_t{0},
                         [](std::int64_t sum, const TrafficLine& line) { return sum + line.up_bytes; });
}

std::int64_t Traffic::down_bytes() const {
  return std::accumulate(lines.begin(), lines.end(), std::int64_t{0},
                         [](std::int64_t sum, const TrafficLine& line) { return sum + line.down_bytes; });
}

TrafficCounter::Count& TrafficCounter::count_of(const std::string* what) {
  const auto found =
      std::find_if(counts_.begin(), counts_.end(), [what](const Count& count) { return count.what == what; });
  return found != counts_.end() ? *found : counts_.emplace_back(Count{what});
}

void TrafficCounter::copy(const kernels::Copy2d& copy, kernels::Queue queue) {
  inner().copy(copy, queue);
  const auto to = books_.owner_of(copy.dst), from = books_.owner_of(copy.src);
  const bool to_device = to && to->space == mem::Space::kDevice;
  const bool from_device = from && from->space == mem::Space::kDevice;
  if (to_device == from_device) return;
  const auto& host = to_device ? from : to;
  Count& count = count_of(host ? host->tag : nullptr);
  (to_device ? count.up_bytes : count.down_bytes) += copy.rows * copy.row_bytes;
}

Traffic TrafficCounter::traffic() const {
  Traffic traffic;
  for (const Count& count : counts_)
    traffic.lines.push_back(
        {count.what != nullptr ? *count.what : "other memory", count.up_bytes, count.down_bytes});
  std::stable_sort(traffic.lines.begin(), traffic.lines.end(),
                   [](const TrafficLine& a, const TrafficLine& b) {
                     return a.up_bytes + a.down_bytes > b.up_bytes + b.down_bytes;
                   });
  return traffic;
}

}  // namespace h3s::exec
