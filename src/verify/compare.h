// How results are compared with reference vectors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace h3s::verify {

// sqrt(sum (a - b)^2 / sum b^2), in binary64. NaN when the sizes differ or a value is not finite.
double relative_rms(const std::vector<float>& a, const std::vector<float>& b);

// How far an error ratio of a tensor of n elements may be from 1: 0.05 from 2000 elements on, 2.5 / sqrt(n) below.
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
  std::string rule;        // what had to hold, in words
};

// f32 compute: relative RMS against the f32 file within `bound`.
Check check_f32(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored,
                double bound);

// 16-bit compute: error ratio to stock within 1 +- tolerance; distance to stock at most stock's own error (n >= 500).
Check check_ratio(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored,
                  const std::vector<float>& yardstick);

// Every element equal.
Check check_equal(const std::string& name, const std::vector<float>& ours, const std::vector<float>& stored);
Check check_equal(const std::string& name, const std::vector<double>& ours, const std::vector<double>& stored);

}  // namespace h3s::verify
