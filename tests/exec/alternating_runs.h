// Many runs of two shapes in one process, and what they leave behind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/select.h"

namespace h3s::test {

struct RunFigures {
  double seconds = 0;                // of the step
  std::int64_t anonymous_bytes = 0;  // of the process, after the run
  std::int64_t device_bytes = 0;     // taken on a GPU by all its processes, after the run; 0 on the CPU
  std::int64_t booked_bytes = 0;     // still in the books after the run, beyond what the backend holds
  bool equal = true;                 // to the first run of the same shape
};

// `count` runs, each a session of its own with one step, alternating between a short resident job and a
// longer flat one.
std::vector<RunFigures> alternate(const backend::DeviceChoice& device, int count);

// With H3S_FIGURES=FILE in the environment: the figures of all runs as one JSON object, for bench/results.
void store_figures(const backend::DeviceChoice& device, const std::vector<RunFigures>& runs);

// The middle of some figures from runs [first, last) of one parity.
template <typename Figure>
Figure median_of(const std::vector<RunFigures>& runs, std::size_t first, std::size_t last,
                 Figure RunFigures::*figure) {
  std::vector<Figure> values;
  for (std::size_t i = first; i < last; i += 2) values.push_back(runs[i].*figure);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace h3s::test
