#include "exec/session.h"

#include <algorithm>
#include <cstring>

#include "exec/session_state.h"

namespace h3s::exec {

using kernels::Queue;

struct Session::Impl : SessionState {
  using SessionState::SessionState;

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
    sequence.run_block(
        {.weights = weights, .modulation = time.modulation(weights.adaln), .phases = block_phases});
    ring.release();
    ring.prefetch(fmt::format("blocks.{}", (i + 1) % spec.layers), /*adaln=*/true);
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
    : impl_(std::make_unique<Impl>(Context{backend, accountant}, checkpoint, layout, options)) {
  impl_->load_globals();
  impl_->sequence.prepare_rotation(layout, impl_->globals.inv_freq);
}

Session::~Session() = default;

void Session::set_conditioning(const Conditioning& conditioning) {
  impl_->conditioning = conditioning;
  impl_->phases.begin(/*forward_idx=*/-1);
  impl_->phases.enter(Phase::kText);
  ConditioningStage stage = impl_->make_conditioning_stage();
  stage.run(impl_->loader, impl_->ring, conditioning.text, impl_->refined);
  impl_->phases.leave();
  impl_->conditioned = true;
}

void Session::forward(const float* video_in, const float* audio_in, float sigma, float* video_out,
                      float* audio_out) {
  Impl& s = *impl_;
  if (!s.conditioned)
    fail(Status::kInvalidArgument, "[session] set_conditioning() must come before forward()");
  s.phases.begin(s.num_forwards++);
  s.phases.enter(Phase::kEmbed);
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
    impl_->tap_rows = impl_->context.accountant.allocate(
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

}  // namespace h3s::exec
