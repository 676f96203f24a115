#include "exec/session.h"

#include <algorithm>
#include <cstring>

#include "exec/session_arena.h"
#include "exec/session_state.h"

namespace h3s::exec {

using kernels::Queue;

namespace {

const checkpoint::Checkpoint& with_data(const checkpoint::Checkpoint& checkpoint) {
  if (!checkpoint.has_data())
    fail(Status::kInvalidArgument, "[session] {} has shapes but no data: it can be planned, not run",
         checkpoint.file().path());
  return checkpoint;
}

// What everything in a session stands on: there before the rest is built, and after it is gone.
struct SessionGround {
  SessionMemory memory;
  TrafficCounter traffic;
  StageLimits limits;
};

// Measured within planned within budget, looked at wherever a phase ends.
class PlanCheck final : public PhaseObserver {
 public:
  explicit PlanCheck(const mem::Arena& arena) : arena_(arena) {}
  void enter(const PhasePoint& point) override { arena_.require_within_plan(phase_name(point.phase)); }
  void leave() override { arena_.require_within_plan("the last phase"); }

 private:
  const mem::Arena& arena_;
};

}  // namespace

struct Session::Impl : SessionGround, SessionState {
  Impl(kernels::Backend& backend, mem::Accountant& books, const WeightLoader& weights,
       const spec::Layout& job, const SessionOptions& opts)
      : SessionGround{open_session_memory(books, weights, job, opts, backend.device_is_host()),
                      {backend, books},
                      StageLimits(opts.warn)},
        SessionState(Context{traffic, memory.arena, &limits}, weights, job, memory.options),
        constructed(memory.arena.position()),
        plan_check(memory.arena) {
    phases.add(plan_check);
    if (opts.warn && options.dials.weight_slots < opts.dials.weight_slots)
      opts.warn(
          "the system refused to pin as much host memory as was planned; weights pass through one slot, and "
          "do not arrive while others compute");
  }

  const std::size_t constructed;  // where set_conditioning() stands in the arena's plan
  PlanCheck plan_check;
  model::GlobalWeights globals;
  Conditioning conditioning;
  bool conditioned = false;
  spec::Timesteps timesteps;
  std::vector<float> time_embedding;
  BlockCallback block_callback;
  RowTap row_tap;
  PhaseTrack phases;
  std::int64_t num_forwards = 0;
  mem::Buffer tap_rows;  // pinned, only while a tap is set
  Drain drain{context};

  void load_globals();
  void run_blocks();
  void tap(const std::string& name);
};

void Session::Impl::load_globals() {
  std::int64_t used = 0;
  globals = loader.load_globals(globals_slot.memory(), &used);
  context.backend.wait(Queue::kCompute, globals_slot.upload(used));
  if (spec.curve()) {
    const io::TensorInfo& table = checkpoint.tensor("adaln_t_table");
    std::memcpy(curve_table.data(), checkpoint.data(table), table.bytes());
  }
}

void Session::Impl::run_blocks() {
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const BlockPhases block_phases(phases, i);
    block_phases.enter(Phase::kKv);
    const model::BlockWeights& weights = ring.acquire(fmt::format("blocks.{}", i), /*adaln=*/true);
    ring.prefetch_after(i);
    sequence.run_block({.weights = weights,
                        .modulation = time.modulation(weights.adaln),
                        .phases = block_phases,
                        .arriving = &ring});
    ring.release();
    if (row_tap) tap(fmt::format("block{}", i));
    if (block_callback) block_callback(i, spec.layers);
  }
}

void Session::Impl::tap(const std::string& name) {
  RowStore& x = sequence.x();
  const std::int64_t chunk = sequence.dials().kv_chunk;
  x.begin_phase();
  for (std::int64_t start = 0; start < sequence.tokens(); start += chunk) {
    const std::int64_t rows = std::min(chunk, sequence.tokens() - start);
    const std::int64_t bytes = rows * x.row_bytes();
    context.backend.copy({tap_rows.data(), bytes, x.read(start, rows), bytes, bytes, 1}, Queue::kCompute);
    x.done();
    context.backend.sync(context.backend.record(Queue::kCompute));
    row_tap(name, start, rows, tap_rows.data(), options.compute, spec.hidden);
  }
}

Session::Session(kernels::Backend& backend, mem::Accountant& accountant,
                 const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                 const SessionOptions& options)
    : impl_(std::make_unique<Impl>(
          backend, accountant, WeightLoader(with_data(checkpoint), options.compute, backend.device_is_host()),
          layout, options)) {
  impl_->load_globals();
  impl_->sequence.prepare_rotation(layout, impl_->globals.inv_freq);
}

Session::~Session() = default;

void Session::set_conditioning(const Conditioning& conditioning) {
  impl_->conditioning = conditioning;
  impl_->phases.begin(/*forward_idx=*/-1);
  impl_->phases.enter(Phase::kText);
  impl_->memory.arena.rewind(impl_->constructed);
  ConditioningStage stage = impl_->make_conditioning_stage();
  {
    const mem::Accountant::Freeze freeze(impl_->memory.arena.accountant(), "set_conditioning()");
    stage.run(impl_->loader, impl_->ring, conditioning.text, impl_->refined);
  }
  impl_->phases.leave();
  impl_->conditioned = true;
}

void Session::forward(const float* video_in, const float* audio_in, float sigma, float* video_out,
                      float* audio_out) {
  Impl& s = *impl_;
  if (!s.conditioned)
    fail(Status::kInvalidArgument, "[session] set_conditioning() must come before forward()");
  const mem::Accountant::Freeze freeze(s.memory.arena.accountant(), "a forward");
  s.phases.begin(s.num_forwards++);
  s.phases.enter(Phase::kEmbed);
  s.traffic.reset();
  s.timesteps = spec::make_timesteps(s.layout, sigma, s.options.timesteps);
  s.time.embed(s.globals, s.curve_table.as<float>(), s.timesteps);
  s.time_embedding = s.time.time_embedding();
  s.embed.run(s.layout, s.globals, s.conditioning, video_in, audio_in, s.refined, s.sequence.x(),
              s.sequence.scratch());
  if (s.row_tap) s.tap("embed");
  s.run_blocks();
  s.phases.enter(Phase::kFinal);
  s.output.run(s.layout, s.timesteps, s.globals, s.time, s.sequence.x(), s.sequence.scratch(), video_out,
               audio_out);
  s.phases.leave();
}

void Session::on_block(BlockCallback callback) {
  impl_->block_callback = std::move(callback);
}

void Session::on_rows(RowTap tap) {
  impl_->row_tap = std::move(tap);
  impl_->tap_rows = mem::Buffer();
  if (impl_->row_tap)
    impl_->tap_rows = impl_->memory.arena.accountant().allocate(
        mem::Space::kPinned, impl_->sequence.dials().kv_chunk * impl_->sequence.x().row_bytes(),
        "tapped rows");
}

void Session::add_observer(PhaseObserver& observer) {
  impl_->phases.add(observer);
}

const std::vector<float>& Session::last_time_embedding() const {
  return impl_->time_embedding;
}
const spec::Timesteps& Session::last_timesteps() const {
  return impl_->timesteps;
}
Dials Session::dials() const {
  return impl_->sequence.dials();
}
Dials Session::effective_dials() const {
  return impl_->limits.applied_to(impl_->sequence.dials());
}
Traffic Session::last_traffic() const {
  return impl_->traffic.traffic();
}

}  // namespace h3s::exec
