#include "exec/long_job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "cli/log.h"
#include "cli/machine.h"
#include "cli/memory_table.h"
#include "cli/memory_watch.h"
#include "exec/phase_clock.h"
#include "exec/session.h"
#include "exec/weight_loader.h"
#include "ops/ops.h"
#include "sample/job.h"

namespace h3s::test {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::Queue;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr const char* kTapped = "tapped rows";  // the session's name for what it holds for a tap

void warn(const std::string& line) {
  cli::log("{}", line);
}

sample::JobOptions one_step() {
  sample::JobOptions options;
  options.seed = 42;
  options.steps = 1;
  return options;
}

// Keeps the rows asked for, and knows how long the session was kept from its work by that.
class BlockTap {
 public:
  BlockTap(CapturedBlock& block, int threads)
      : block_(block),
        threads_(threads),
        input_name_(block.block_idx == 0 ? "embed" : fmt::format("block{}", block.block_idx - 1)),
        output_name_(fmt::format("block{}", block.block_idx)) {}

  void see(const std::string& name, std::int64_t first, std::int64_t rows, const void* data,
           std::int64_t columns, std::int64_t tokens) {
    if (first == 0) begin_ = Clock::now();  // the device has done all that came before
    const std::int64_t row_bytes = columns * static_cast<std::int64_t>(sizeof(BF16));
    const auto* bytes = static_cast<const std::byte*>(data);
    if (name == input_name_)
      exec::load_bytes(bytes, rows * row_bytes, threads_, block_.input.as<std::byte>() + first * row_bytes);
    if (name == output_name_) keep_rows(first, rows, static_cast<const BF16*>(data), columns);
    if (first + rows == tokens) seconds_[name] = seconds_since(begin_);
  }

  double seconds(const std::string& name) const { return seconds_.at(name); }
  double all_seconds() const {
    double sum = 0;
    for (const auto& [name, seconds] : seconds_) sum += seconds;
    return sum;
  }

 private:
  void keep_rows(std::int64_t first, std::int64_t rows, const BF16* data, std::int64_t columns) {
    for (std::size_t i = 0; i < block_.rows.size(); ++i) {
      const std::int64_t row = block_.rows[i] - first;
      if (row >= 0 && row < rows)
        std::copy_n(data + row * columns, columns,
                    block_.output.begin() + static_cast<std::ptrdiff_t>(i) * columns);
    }
  }

  CapturedBlock& block_;
  int threads_;
  std::string input_name_, output_name_;
  Clock::time_point begin_;
  std::map<std::string, double> seconds_;
};

// When the device came to a block, when it left it, and how long it spent in each phase.
class BlockTimes {
 public:
  explicit BlockTimes(kernels::Backend& backend) : clock_(backend) {}
  exec::PhaseObserver& observer() { return clock_; }

  void collect() {
    for (const exec::PhaseSpan& span : clock_.collect()) {
      if (span.point.forward_idx < 0 || span.point.block_idx < 0) continue;
      Block& block = blocks_[span.point.block_idx];
      if (block.end_ms == 0) block.begin_ms = span.begin_ms;
      block.end_ms = span.end_ms;
      block.phase_ms[exec::phase_name(span.point.phase)] += span.end_ms - span.begin_ms;
    }
  }

  nlohmann::json json(const BlockTap& tap) const {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& [block_idx, block] : blocks_) {
      const double tap_seconds = tap.seconds(fmt::format("block{}", block_idx));
      nlohmann::json phases;
      for (const auto& [name, ms] : block.phase_ms)
        phases[name] =
            ms * 1e-3 - (name == "mlp" ? tap_seconds : 0);  // the last phase, open while rows are read
      out.push_back(
          {{"seconds", (block.end_ms - block.begin_ms) * 1e-3 - tap_seconds}, {"phase_seconds", phases}});
    }
    return out;
  }

 private:
  struct Block {
    double begin_ms = 0, end_ms = 0;
    std::map<std::string, double> phase_ms;
  };
  exec::PhaseClock clock_;
  std::map<std::int64_t, Block> blocks_;
};

// What crossed for the run; the tap brought all rows down, and where x is at home on the host up before.
void add_traffic(const exec::Session& session, nlohmann::json& figures) {
  const exec::Traffic traffic = session.last_traffic();
  std::int64_t tapped = 0;
  for (const exec::TrafficLine& line : traffic.lines)
    if (line.what == kTapped) tapped = line.down_bytes;
  const bool x_on_host = session.dials().schedule == exec::Schedule::kFlat;
  figures["to_device_bytes"] = traffic.up_bytes() - (x_on_host ? tapped : 0);
  figures["from_device_bytes"] = traffic.down_bytes() - tapped;
}

}  // namespace

LongJob::LongJob(const LongJobOptions& options, const checkpoint::Checkpoint& checkpoint,
                 const std::string& inputs_path)
    : options_(options),
      checkpoint_(checkpoint),
      inputs_(sample::Inputs::open(inputs_path, checkpoint.spec())),
      layout_(inputs_.job()) {
  plan_run();
}

void LongJob::plan_run() {
  const cli::Machine machine = cli::machine_of(options_.where, options_.calibration);
  const std::int64_t sampler = sample::Job::host_bytes(inputs_, one_step(), /*resuming=*/false).peak;
  budgets_ = options_.budgets;
  if (budgets_.device_bytes == mem::kUnlimited) budgets_.device_bytes = machine.device_bytes;
  context_bytes_ = machine.context_bytes();
  exec::SessionOptions session;
  session.warn = warn;
  const plan::Request request{
      .checkpoint = checkpoint_,
      .layout = layout_,
      .session = session,
      .device_is_host = machine.device_is_host,
      .holdings = {machine.context(),
                   {mem::Space::kDevice, backend::workspace_bytes(options_.where), "backend's workspace"},
                   {mem::Space::kHost, sampler, "sampler and inputs"}},
      .budgets = budgets_,
      .calibration = machine.calibration};
  plan_ = plan::require_plan(request);
}

nlohmann::json LongJob::plan_json() const {
  return {{"plan", plan_.dials.describe()},
          {"planned_seconds_per_step", plan_.time.seconds},
          {"planned_traffic_bytes", plan_.time.host_traffic_bytes}};
}

CapturedBlock LongJob::run(const std::vector<std::int64_t>& rows, mem::Accountant& keep,
                           nlohmann::json& figures) {
  const spec::ModelSpec& spec = checkpoint_.spec();
  CapturedBlock block{.block_idx = spec.layers - 1, .rows = rows};
  block.input = keep.allocate(mem::Space::kHost,
                              layout_.tokens() * spec.hidden * static_cast<std::int64_t>(sizeof(BF16)),
                              "input of the block");
  block.output.resize(rows.size() * static_cast<std::size_t>(spec.hidden));
  BlockTap tap(block, exec::loading_threads(backend::device_is_host(options_.where)));

  cli::MemoryWatch watch(options_.where);
  mem::Accountant accountant(backend::make_allocator(options_.where, warn));
  if (budgets_.device_bytes != mem::kUnlimited)
    accountant.set_budget(mem::Space::kDevice, budgets_.device_bytes - context_bytes_);
  {
    const std::unique_ptr<kernels::Backend> engine = backend::make_backend(options_.where, accountant);
    sample::Job job(inputs_, one_step(), /*resuming=*/false, accountant);
    BlockTimes times(*engine);
    exec::Session session(*engine, accountant, checkpoint_, layout_,
                          {.compute = DType::kBF16, .dials = plan_.dials, .warn = warn});
    session.add_observer(watch);
    session.add_observer(times.observer());
    session.set_conditioning({job.text(), job.visual_rows(), job.audio_rows()});
    // A forward allocates nothing: the peaks are there, and the tap's own rows are not yet.
    figures["memory"] = cli::measure_memory(plan_.footprint, accountant, budgets_, context_bytes_).json();
    session.on_rows(
        [&](const std::string& name, std::int64_t first, std::int64_t count, const void* data, DType,
            std::int64_t columns) { tap.see(name, first, count, data, columns, layout_.tokens()); });
    const Clock::time_point begin = Clock::now();
    session.on_block([&](std::int64_t block_idx, std::int64_t layers) {
      times.collect();
      cli::log("block {} of {} at {:.1f} s", block_idx + 1, layers, seconds_since(begin));
    });
    job.sampler().step(
        [&](const float* video, const float* audio, float sigma, float* video_velocity,
            float* audio_velocity) { session.forward(video, audio, sigma, video_velocity, audio_velocity); });
    engine->sync(engine->record(Queue::kCompute));
    figures["seconds_per_step"] = seconds_since(begin) - tap.all_seconds();
    times.collect();
    figures["blocks"] = times.json(tap);
    add_traffic(session, figures);
    figures["effective_dials"] = session.effective_dials().describe();
    block.timesteps = session.last_timesteps();
  }
  figures["seen"] = watch.json();
  return block;
}

// ----------------------------------------------------------------------------------------------------

std::vector<std::int64_t> sample_rows(const spec::Layout& layout, const spec::ModelSpec& spec,
                                      const exec::Dials& dials, std::int64_t count) {
  const std::int64_t tokens = layout.tokens();
  std::set<std::int64_t> rows;
  const auto add = [&](std::int64_t row) {
    if (row >= 0 && row < tokens) rows.insert(row);
  };
  for (const spec::Segment& segment : layout.segments())
    for (const std::int64_t row : {segment.start, (segment.start + segment.stop) / 2, segment.stop - 1})
      add(row);
  for (const std::int64_t chunk : {dials.q_chunk, dials.kv_chunk, dials.mlp_chunk}) {
    if (chunk == 0) continue;
    const std::int64_t last = (tokens - 1) / chunk * chunk;
    add(last);
    add(last - 1);
  }
  for (const std::int64_t width : {spec.hidden, spec.inner()})
    for (const int power : {30, 31, 32}) {  // of elements; in bytes twice that
      const std::int64_t row = (std::int64_t{1} << power) / width;
      add(row);
      add(row + 1);
    }
  for (std::int64_t parts = 2; static_cast<std::int64_t>(rows.size()) < std::min(count, tokens); parts *= 2)
    for (std::int64_t i = 1; i < parts && static_cast<std::int64_t>(rows.size()) < std::min(count, tokens);
         i += 2)
      add(tokens * i / parts);
  return {rows.begin(), rows.end()};
}

double attention_alone_seconds(kernels::Backend& backend, mem::Accountant& accountant,
                               const spec::ModelSpec& spec, std::int64_t tokens, const exec::Dials& dials) {
  constexpr std::int64_t kElement = sizeof(BF16), kMade = 1 << 20;  // values, repeated
  const std::int64_t d = spec.head_dim;
  const std::int64_t heads =
      dials.schedule == exec::Schedule::kResident ? spec.heads : std::min(dials.head_group, spec.heads);
  const std::int64_t queries = dials.q_chunk == 0 ? tokens : std::min(dials.q_chunk, tokens);
  const mem::Buffer made = accountant.allocate(mem::Space::kPinned, kMade * kElement, "made-up values");
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kMade; ++i) made.as<BF16>()[i] = to_bf16(normal(generator));
  const auto filled = [&](std::int64_t rows, const char* tag) {
    mem::Buffer buffer = accountant.allocate(mem::Space::kDevice, rows * d * kElement, tag);
    for (std::int64_t at = 0; at < rows * d; at += kMade) {
      const std::int64_t bytes = std::min(kMade, rows * d - at) * kElement;
      backend.copy({buffer.as<BF16>() + at, bytes, made.data(), bytes, bytes, 1}, Queue::kCompute);
    }
    return buffer;
  };
  const mem::Buffer q = filled(heads * queries, "q"), k = filled(heads * tokens, "k"),
                    v = filled(heads * tokens, "v"), o = filled(heads * queries, "o");
  const kernels::AttentionArgs args{.q = q.data(),
                                    .k = k.data(),
                                    .v = v.data(),
                                    .o = o.data(),
                                    .dtype = DType::kBF16,
                                    .heads = heads,
                                    .q_tokens = queries,
                                    .kv_tokens = tokens,
                                    .q_head_stride = queries * d,
                                    .q_token_stride = d,
                                    .k_head_stride = tokens * d,
                                    .k_token_stride = d,
                                    .v_head_stride = tokens * d,
                                    .v_token_stride = d,
                                    .o_head_stride = d,
                                    .o_token_stride = heads * d,
                                    .scale = 1.0f / std::sqrt(static_cast<float>(d))};
  const auto seconds_of = [&](int calls) {
    const kernels::Stamp begin = backend.stamp(Queue::kCompute);
    for (int i = 0; i < calls; ++i) ops::attention(backend, args);
    const kernels::Stamp end = backend.stamp(Queue::kCompute);
    backend.sync(backend.record(Queue::kCompute));
    const double begin_ms = *backend.passed_ms(begin);
    return (*backend.passed_ms(end) - begin_ms) * 1e-3 / calls;
  };
  const double first = seconds_of(1);  // also what wakes the device
  const double call = seconds_of(std::clamp(static_cast<int>(1.0 / std::max(first, 1e-6)), 1, 100));
  return call * static_cast<double>(tokens) / static_cast<double>(queries) * static_cast<double>(spec.heads) /
         static_cast<double>(heads);
}

}  // namespace h3s::test
