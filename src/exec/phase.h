// The phases of a run, and who is told of them.
//
// A schedule may leave a phase of a block and come back to it: attention and projection of different head
// groups alternate. So a phase is the sum of its visits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace h3s::exec {

enum class Phase : int {
  kText,   // set_conditioning: text projection and refiner
  kEmbed,  // timesteps, embedding of every row
  kKv,     // of a block: its weights' arrival, norm, modulation, q, k, v
  kAttn,   // of a block: attention
  kMlp,    // of a block: out_proj, residuals, MLP
  kFinal,  // output heads
};
inline constexpr std::array<const char*, 6> kPhaseNames{"text", "embed", "kv", "attn", "mlp", "final"};
inline const char* phase_name(Phase phase) {
  return kPhaseNames[static_cast<std::size_t>(phase)];
}

// Where a session is.
struct PhasePoint {
  std::int64_t forward_idx = -1;  // forwards of the session, from 0; -1: set_conditioning
  std::int64_t block_idx = -1;    // -1: outside blocks
  Phase phase = Phase::kText;
  bool operator==(const PhasePoint&) const = default;
};

// Called by the thread that runs the session, while it enqueues: the device may lag behind. May throw, which
// ends the run.
class PhaseObserver {
 public:
  virtual ~PhaseObserver() = default;
  // What is enqueued from here on belongs to `point`, until the next call.
  virtual void enter(const PhasePoint& point) = 0;
  // The end of a forward or of set_conditioning. Not called when an exception ends it.
  virtual void leave() = 0;
};

// Where the session is, told to every observer when it changes.
class PhaseTrack {
 public:
  // Not owned; must outlive the session.
  void add(PhaseObserver& observer) { observers_.push_back(&observer); }

  void begin(std::int64_t forward_idx) {
    at_ = {.forward_idx = forward_idx};
    inside_ = false;
  }
  // Nothing happens when that is where it is.
  void enter(Phase phase, std::int64_t block_idx = -1) {
    const PhasePoint point{at_.forward_idx, block_idx, phase};
    if (inside_ && point == at_) return;
    at_ = point;
    inside_ = true;
    for (PhaseObserver* observer : observers_) observer->enter(point);
  }
  void leave() {
    inside_ = false;
    for (PhaseObserver* observer : observers_) observer->leave();
  }

 private:
  PhasePoint at_;
  bool inside_ = false;
  std::vector<PhaseObserver*> observers_;
};

// The phases of one block; a default one tells nobody.
class BlockPhases {
 public:
  BlockPhases() = default;
  BlockPhases(PhaseTrack& track, std::int64_t block_idx) : track_(&track), block_idx_(block_idx) {}
  void enter(Phase phase) const {
    if (track_ != nullptr) track_->enter(phase, block_idx_);
  }

 private:
  PhaseTrack* track_ = nullptr;
  std::int64_t block_idx_ = -1;
};

}  // namespace h3s::exec
