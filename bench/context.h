// What the groups of `h3stream bench` share: the backend under test, data, timing and the rows of the result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/float16.h"
#include "bench.h"
#include "kernels/backend.h"
#include "mem/accountant.h"

namespace h3s::bench {

struct Timing {
  double median_s = 0;
  double best_s = 0;
  double spread = 0;  // (largest - smallest) / median
};

// kThread: processor time of the calling thread, which other programs disturb less; right when all the work
// is there.
enum class Clock { kWall, kThread };

// Calls each function once to warm up, then `rounds` times in turn.
std::vector<Timing> time_in_turn(const std::vector<std::function<void()>>& fns, int rounds, Clock clock);

// One line of the result. `work` is operations (rate GOP/s) or bytes (rate GB/s) of one call.
struct Row {
  std::string group, name, shape;
  double work = 0;
  std::string unit;        // "GFLOP/s", "GOP/s", "GB/s"
  std::string comparator;  // empty: none found
  double comparator_work = 0;
  double target_ratio = 0;  // 0: none stated
};

class Context {
 public:
  explicit Context(const Options& options);

  const Options& options() const { return options_; }
  kernels::Backend& backend() { return *backend_; }
  kernels::Backend& definition() { return *definition_; }
  int num_threads() const { return num_threads_; }
  Clock clock() const { return num_threads_ == 1 ? Clock::kThread : Clock::kWall; }

  // Times `ours` and, where given, `theirs`, and appends the row.
  void measure(const Row& row, const std::function<void()>& ours, const std::function<void()>& theirs);

  // Appends a measured rate that stands alone, as a machine's peak does.
  void add_rate(const std::string& group, const std::string& name, double work, const std::string& unit,
                const std::function<void()>& fn);

  const nlohmann::json& rows() const { return rows_; }

 private:
  void append(nlohmann::json row);

  Options options_;
  int num_threads_;
  mem::Accountant accountant_;
  std::unique_ptr<kernels::Backend> backend_, definition_;
  nlohmann::json rows_ = nlohmann::json::array();
};

// Normal values; the same seed gives the same values.
std::vector<float> random_floats(std::int64_t count, std::uint64_t seed);
std::vector<BF16> to_bf16(const std::vector<float>& values);
std::vector<std::int8_t> random_codes(std::int64_t count, std::uint64_t seed, int low, int high);

// Throws Error(kInternal) naming `what` unless ok.
void check(bool ok, const std::string& what);

void bench_linear(Context& context);
void bench_int8(Context& context);
void bench_attention(Context& context);
void bench_rows(Context& context);

}  // namespace h3s::bench
