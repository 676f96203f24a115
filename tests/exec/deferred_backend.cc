#include "exec/deferred_backend.h"

#include <algorithm>

#include "base/error.h"

namespace h3s::test {

using kernels::Event;
using kernels::Queue;

namespace {

// One step in this many ignores the preference.
constexpr std::uint64_t kWhim = 16;

// Segments are host memory read during the call: a deferred op keeps its own.
template <typename Args>
auto with_own_segments(const Args& args) {
  return [args,
          segments = std::vector<kernels::ModSegment>(
              args.modulation.segments, args.modulation.segments + args.modulation.num_segments)](auto run) {
    Args own = args;
    own.modulation.segments = segments.data();
    run(own);
  };
}

}  // namespace

DeferredBackend::DeferredBackend(kernels::Backend& inner, std::uint64_t seed) : inner_(inner), random_(seed) {
  std::shuffle(preference_.begin(), preference_.end(), random_);
}

DeferredBackend::~DeferredBackend() {
  while (step()) {
  }
}

bool DeferredBackend::step() {
  std::array<std::size_t, kernels::kNumQueues> order = preference_;
  if (random_() % kWhim == 0) std::shuffle(order.begin(), order.end(), random_);
  for (const std::size_t i : order) {
    std::deque<Task>& tasks = queues_[i];
    if (tasks.empty() || (tasks.front().wait_for != 0 && !passed_.contains(tasks.front().wait_for))) continue;
    const Task task = std::move(tasks.front());
    tasks.pop_front();
    ++steps_run_;
    if (task.work) task.work();
    if (task.signal != 0) passed_.insert(task.signal);
    return true;
  }
  return false;
}

void DeferredBackend::copy(const kernels::Copy2d& copy, Queue q) {
  if (q == Queue::kUpload) uploaded_bytes_ += copy.row_bytes * copy.rows;
  queue(q).push_back({[this, copy, q] { inner_.copy(copy, q); }, 0, 0});
}

Event DeferredBackend::record(Queue q) {
  queue(q).push_back({nullptr, 0, ++last_event_});
  return {last_event_};
}

void DeferredBackend::wait(Queue q, Event event) {
  if (event.id != 0) queue(q).push_back({nullptr, event.id, 0});
}

void DeferredBackend::sync(Event event) {
  while (event.id != 0 && !passed_.contains(event.id))
    H3S_ASSERT(step());  // else: a wait for what never comes
}

kernels::Stamp DeferredBackend::stamp(Queue q) {
  const std::uint64_t id = ++last_stamp_;
  queue(q).push_back({[this, id] { stamps_passed_[id] = static_cast<double>(steps_run_); }, 0, 0});
  return {id};
}

std::optional<double> DeferredBackend::passed_ms(kernels::Stamp stamp) {
  const auto node = stamps_passed_.extract(stamp.id);
  return node.empty() ? std::nullopt : std::optional(node.mapped());
}

void DeferredBackend::linear(const kernels::LinearArgs& a) {
  enqueue([this, a] { inner_.linear(a); });
}
void DeferredBackend::linear_int8(const kernels::LinearInt8Args& a) {
  enqueue([this, a] { inner_.linear_int8(a); });
}
void DeferredBackend::quantize_rows(const kernels::QuantizeRowsArgs& a) {
  enqueue([this, a] { inner_.quantize_rows(a); });
}
void DeferredBackend::swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& a) {
  enqueue([this, a] { inner_.swiglu_quantize_rows(a); });
}
void DeferredBackend::quantize_float(const kernels::QuantizeFloatArgs& a) {
  enqueue([this, a] { inner_.quantize_float(a); });
}
void DeferredBackend::abs_max(const kernels::AbsMaxArgs& a) {
  enqueue([this, a] { inner_.abs_max(a); });
}
void DeferredBackend::rms_norm(const kernels::RmsNormArgs& a) {
  enqueue([this, own = with_own_segments(a)] { own([this](const auto& args) { inner_.rms_norm(args); }); });
}
void DeferredBackend::gated_residual(const kernels::GatedResidualArgs& a) {
  enqueue(
      [this, own = with_own_segments(a)] { own([this](const auto& args) { inner_.gated_residual(args); }); });
}
void DeferredBackend::swiglu(const kernels::SwigluArgs& a) {
  enqueue([this, a] { inner_.swiglu(a); });
}
void DeferredBackend::silu(const kernels::SiluArgs& a) {
  enqueue([this, a] { inner_.silu(a); });
}
void DeferredBackend::modulation_table(const kernels::ModulationTableArgs& a) {
  enqueue([this, a] { inner_.modulation_table(a); });
}
void DeferredBackend::final_modulate(const kernels::FinalModulateArgs& a) {
  enqueue([this, a] { inner_.final_modulate(a); });
}
void DeferredBackend::rope_table(const kernels::RopeTableArgs& a) {
  enqueue([this, a] { inner_.rope_table(a); });
}
void DeferredBackend::qkv_norm_rope(const kernels::QkvArgs& a) {
  enqueue([this, a] { inner_.qkv_norm_rope(a); });
}
void DeferredBackend::attention(const kernels::AttentionArgs& a) {
  enqueue([this, a] { inner_.attention(a); });
}

}  // namespace h3s::test
