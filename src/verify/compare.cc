#include "verify/compare.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace h3s::verify {
namespace {

constexpr std::int64_t kManyElements = 2000;     // from here on the spread of a ratio is below 0.05
constexpr std::int64_t kDistanceElements = 500;  // below, a distance is too noisy to bound

template <typename T>
Check equal(const std::string& name, const std::vector<T>& ours, const std::vector<T>& stored) {
  Check check{
      .name = name, .elements = static_cast<std::int64_t>(stored.size()), .rule = "every element equal"};
  std::size_t differing = ours.size() == stored.size() ? 0 : stored.size();
  for (std::size_t i = 0; differing == 0 && i < stored.size(); ++i) differing += !(ours[i] == stored[i]);
  check.ok = differing == 0;
  check.distance = check.ok ? 0 : std::numeric_limits<double>::infinity();
  return check;
}

}  // namespace

double relative_rms(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::quiet_NaN();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

double ratio_tolerance(std::int64_t n) {
  return n >= kManyElements ? 0.05 : 2.5 / std::sqrt(static_cast<double>(n));
}

Check check_f32(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored,
                double bound) {
  Check check{.name = name, .elements = static_cast<std::int64_t>(stored.size())};
  check.our_error = check.distance = relative_rms(ours, stored);
  check.ok = check.our_error <= bound;
  check.rule = fmt::format("error <= {:.0e}", bound);
  return check;
}

Check check_ratio(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored,
                  const std::vector<float>& yardstick, double distance_bound) {
  Check check{.name = name, .elements = static_cast<std::int64_t>(stored.size())};
  check.our_error = relative_rms(ours, yardstick);
  check.stock_error = relative_rms(stored, yardstick);
  check.distance = relative_rms(ours, stored);
  const double tolerance = ratio_tolerance(check.elements);
  const bool ratio_ok = std::abs(check.ratio() - 1) <= tolerance;
  const bool distance_ok =
      check.elements < kDistanceElements || check.distance <= distance_bound * check.stock_error;
  check.ok = ratio_ok && distance_ok;
  check.rule = fmt::format("ratio 1 +- {:.3f}", tolerance);
  if (check.elements >= kDistanceElements)
    check.rule += fmt::format(", distance <= {:.2f} x stock's", distance_bound);
  return check;
}

Check check_equal(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored) {
  return equal(name, ours, stored);
}
Check check_equal(const std::string& name, const std::vector<double>& ours,
                  const std::vector<double>& stored) {
  return equal(name, ours, stored);
}

}  // namespace h3s::verify
