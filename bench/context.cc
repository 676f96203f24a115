#include "context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <random>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "comparators.h"

namespace h3s::bench {
namespace {

double now_s(Clock clock) {
  timespec t{};
  clock_gettime(clock == Clock::kThread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double elapsed_s(const std::function<void()>& fn, Clock clock) {
  const double start = now_s(clock);
  fn();
  return now_s(clock) - start;
}

nlohmann::json rate(double work, const Timing& t) {
  return {{"rate", work / t.median_s * 1e-9},
          {"best_rate", work / t.best_s * 1e-9},
          {"spread", t.spread},
          {"median_ms", t.median_s * 1e3}};
}

}  // namespace

Timing summarize(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {median, times.front(), (times.back() - times.front()) / median};
}

const char* clock_name(Clock clock) {
  switch (clock) {
    case Clock::kThread:
      return "thread";
    case Clock::kWall:
      return "wall";
    case Clock::kDevice:
      return "device";
  }
  return "";
}

std::vector<Timing> time_in_turn(const std::vector<std::function<void()>>& fns, int rounds, Clock clock) {
  std::vector<std::vector<double>> times(fns.size());
  for (const auto& fn : fns) fn();
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < fns.size(); ++i) times[i].push_back(elapsed_s(fns[i], clock));
  std::vector<Timing> result;
  for (auto& t : times) result.push_back(summarize(std::move(t)));
  return result;
}

Context::Context(const Options& options)
    : options_(options),
      num_threads_(options.device.threads > 0 ? options.device.threads
                                              : static_cast<int>(std::thread::hardware_concurrency())),
      accountant_(backend::make_allocator(options.device)),
      backend_(backend::make_backend(options.device, accountant_)),
      definition_(cpu::make_definition_backend()) {
  if (!on_gpu()) openblas::set_num_threads(num_threads_);
}

std::unique_ptr<kernels::Backend> Context::make_plain_backend() {
  if (!on_gpu()) return cpu::make_definition_backend();
  backend::DeviceChoice plain = options_.device;
  plain.reference = true;
  return backend::make_backend(plain, accountant_);
}

Clock Context::clock() const {
  if (on_gpu()) return Clock::kDevice;
  return num_threads_ == 1 ? Clock::kThread : Clock::kWall;
}

void Context::sync() {
  backend_->sync(backend_->record(kernels::Queue::kCompute));
}

double Context::elapsed_s(const std::function<void()>& fn) {
  if (!on_gpu()) return bench::elapsed_s(fn, clock());
  const kernels::Stamp start = backend_->stamp(kernels::Queue::kCompute);
  fn();
  const kernels::Stamp stop = backend_->stamp(kernels::Queue::kCompute);
  sync();
  const double start_ms = backend_->passed_ms(start).value();
  return 1e-3 * (backend_->passed_ms(stop).value() - start_ms);
}

void Context::warm_up(const std::function<void()>& fn) {
  const double enough_s = on_gpu() ? 0.1 : 0.0;
  const double start = now_s(Clock::kWall);
  do {
    fn();
    sync();
  } while (now_s(Clock::kWall) - start < enough_s);
}

std::vector<Timing> Context::time(const std::vector<std::function<void()>>& fns) {
  if (!on_gpu()) return time_in_turn(fns, options_.rounds, clock());
  // What is over soon is called several times in a row, as in a step: one call alone would be timed with the
  // start of a launch on an idle device.
  constexpr double kLeast_s = 2e-3;
  std::vector<Timing> result;
  for (const auto& fn : fns) {
    warm_up(fn);
    const int calls = std::clamp(static_cast<int>(std::ceil(kLeast_s / elapsed_s(fn))), 1, 1000);
    const auto in_a_row = [&] {
      for (int i = 0; i < calls; ++i) fn();
    };
    std::vector<double> times;
    for (int round = 0; round < options_.rounds; ++round) times.push_back(elapsed_s(in_a_row) / calls);
    result.push_back(summarize(std::move(times)));
  }
  return result;
}

void Context::measure(const Row& row, const std::function<void()>& ours,
                      const std::function<void()>& theirs) {
  std::vector<std::function<void()>> fns{ours};
  if (theirs) fns.push_back(theirs);
  const std::vector<Timing> timings = time(fns);
  nlohmann::json out{{"group", row.group}, {"name", row.name}, {"shape", row.shape}, {"unit", row.unit}};
  out.update(rate(row.work, timings[0]));
  if (theirs) {
    out["comparator"] = rate(row.comparator_work, timings[1]);
    out["comparator"]["name"] = row.comparator;
    out["ratio"] = out["rate"].get<double>() / out["comparator"]["rate"].get<double>();
    out["best_ratio"] = out["best_rate"].get<double>() / out["comparator"]["best_rate"].get<double>();
    if (row.target_ratio > 0) out["target_ratio"] = row.target_ratio;
  }
  append(std::move(out));
}

void Context::add_rate(const std::string& group, const std::string& name, double work,
                       const std::string& unit, const std::function<void()>& fn) {
  nlohmann::json out{{"group", group}, {"name", name}, {"shape", ""}, {"unit", unit}};
  out.update(rate(work, time({fn})[0]));
  append(std::move(out));
}

void Context::append(nlohmann::json row) {
  fmt::print(stderr, "{} {} {}: {:.1f} {}\n", row["group"].get<std::string>(), row["name"].get<std::string>(),
             row["shape"].get<std::string>(), row["rate"].get<double>(), row["unit"].get<std::string>());
  rows_.push_back(std::move(row));
}

std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = normal(engine);
  return values;
}

std::vector<BF16> to_bf16(const std::vector<float>& values) {
  std::vector<BF16> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](float v) { return h3s::to_bf16(v); });
  return result;
}

std::vector<std::int8_t> random_codes(std::int64_t count, std::uint64_t seed, int low, int high) {
  std::mt19937_64 engine(seed);
  std::uniform_int_distribution<int> code(low, high);
  std::vector<std::int8_t> codes(static_cast<std::size_t>(count));
  for (std::int8_t& v : codes) v = static_cast<std::int8_t>(code(engine));
  return codes;
}

void check(bool ok, const std::string& what) {
  if (!ok) fail(Status::kInternal, "[bench] check failed: {}", what);
}

}  // namespace h3s::bench
