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

Timing summarize(std::vector<double> seconds);

// kThread: processor time of the calling thread, which other programs disturb less; right when all the work
// is there. kDevice: stamps in the compute queue of a GPU.
enum class Clock { kWall, kThread, kDevice };
const char* clock_name(Clock clock);

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
  bool on_gpu() const { return !options_.device.on_cpu(); }
  kernels::Backend& backend() { return *backend_; }
  kernels::Backend& definition() { return *definition_; }  // on host memory
  // The definitions on the memory of the device: a GPU's plain kernels, or the CPU's plain loops.
  std::unique_ptr<kernels::Backend> make_plain_backend();
  mem::Accountant& accountant() { return accountant_; }
  int num_threads() const { return num_threads_; }
  Clock clock() const;

  void sync();  // with the ops called so far
  // Seconds from the start of fn's first op to the end of its last.
  double elapsed_s(const std::function<void()>& fn);
  // Calls fn once, on a GPU for a tenth of a second: the card's clock follows the load.
  void warm_up(const std::function<void()>& fn);

  // Times `ours` and, where given, `theirs`, and appends the row.
  void measure(const Row& row, const std::function<void()>& ours, const std::function<void()>& theirs);

  // Appends a measured rate that stands alone, as a machine's peak does.
  void add_rate(const std::string& group, const std::string& name, double work, const std::string& unit,
                const std::function<void()>& fn);

  // A row with group, name, shape, rate, unit and spread at least.
  void append(nlohmann::json row);

  const nlohmann::json& rows() const { return rows_; }

 private:
  std::vector<Timing> time(const std::vector<std::function<void()>>& fns);

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
void bench_device_linear(Context& context);
void bench_device_int8(Context& context);
void bench_device_attention(Context& context);
void bench_device_rows(Context& context);
void bench_block(Context& context);

}  // namespace h3s::bench
