// How results are compared with reference vectors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace h3s::verify {

// sqrt(sum (a - b)^2 / sum b^2), in binary64. NaN when the sizes differ or a value is not finite.
double relative_rms(const std::vector<float>& a, const std::vector<float>& b);

// How far an error ratio of a tensor of n elements may be from 1: 0.05 from 2000 elements on, 2.5 / sqrt(n)
// below.
double ratio_tolerance(std::int64_t n);

// One line of a verification: a tensor, or a property.
struct Check {
  std::string name;
  std::int64_t elements = 0;
  double our_error = 0;    // relative RMS against the yardstick
  double stock_error = 0;  // the same of the stored result; 0 where the rule does not use it
  double distance = 0;     // ours against the stored result
  double ratio() const { return stock_error > 0 ? our_error / stock_error : 0; }
  bool ok = false;
  std::string rule;  // what had to hold, in words
};

// f32 compute: relative RMS against the f32 file within `bound`.
Check check_f32(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored,
                double bound);

// 16-bit compute: error ratio to stock within 1 +- tolerance; from 500 elements on, distance to stock at most
// `distance_bound` x stock's own error.
Check check_ratio(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored,
                  const std::vector<float>& yardstick, double distance_bound);

// Floating-point weights: both results share most of their roundings.
inline constexpr double kSharedRoundings = 1.0;
// Quantised activations: the GPU form rounds before the codes otherwise than the portable form of the files,
// so the codes, and with them the errors, are nearly independent: two independent errors lie sqrt(2) apart,
// and each may be larger than stock's by the tolerance of the ratio.
inline constexpr double kIndependentCodes = 1.4142135623730951 * 1.05;

// Every element equal.
Check check_equal(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored);
Check check_equal(const std::string& name, const std::vector<double>& ours,
                  const std::vector<double>& stored);

}  // namespace h3s::verify
