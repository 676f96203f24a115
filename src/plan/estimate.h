// Seconds of one evaluation of the network under given dials, stage by stage, from the rates of a machine.
#pragma once

#include <array>
#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "exec/dials.h"
#include "exec/weight_loader.h"
#include "plan/calibration.h"
#include "spec/layout.h"

namespace h3s::plan {

enum StageIdx : std::size_t { kEmbed, kProject, kAttend, kFinish, kWeights, kHeads, kNumStages };

// Of all blocks together. Where copies run beside compute, `seconds` is the longest of the three and the
// copies that nothing runs beside; elsewhere their sum.
struct Stage {
  double compute = 0, upload = 0, download = 0;
  double seconds = 0;
};

struct Estimate {
  std::array<Stage, kNumStages> stages;
  double seconds = 0;             // a step
  double setup_seconds = 0;       // once: weights that are loaded before the first step
  double waiting() const;         // seconds of a step in which nothing is computed
  double host_traffic_bytes = 0;  // a step, both directions
};
const char* stage_name(std::size_t stage);  // "embed", "project q, k, v", ...

// Estimates are compared in steps of 2^(1/128), half a percent: they are no better than that, and of plans
// within one step the one that copies less is taken, then the leaner.
std::int64_t time_rank(double seconds);

// One job on one machine; thread-safe.
class TimeModel {
 public:
  // All arguments but the calibration must live as long as the model. `weights_cached`: the checkpoint stays
  // in the page cache between steps.
  TimeModel(const Calibration& calibration, const exec::WeightLoader& loader, const spec::Layout& layout,
            bool device_is_host, bool weights_cached);

  // `dials` as they apply (exec::effective_dials).
  Estimate estimate(const exec::Dials& dials) const;

 private:
  // A layer of each block: how many blocks multiply int8 codes, and quantise SwiGLU as they compute it; the
  // rank of what LoRAs add, on average.
  struct Layer {
    std::int64_t n = 0, k = 0;
    double int8_share = 0, fused_share = 0, low_rank = 0;
  };
  struct Copies {
    double up = 0, down = 0;  // seconds
  };

  // Seconds of merging LoRAs: into all blocks of the network, and into what is loaded once.
  struct Merging {
    double blocks = 0, once = 0;
  };

  Layer layer(const char* name) const;
  Merging merging() const;
  const LinearRate& float_rate() const;
  double linear(const Layer& layer, double rows, double calls, double n) const;
  double low_rank(const Layer& layer, double rows, double calls, double n) const;
  double quantize(const Layer& layer, double rows, double calls, double width) const;
  double rows(double bytes, double calls) const;
  double island(double rows, double calls, std::int64_t n, std::int64_t k) const;
  double projection_input(double rows, double chunk) const;
  double project(double rows, double chunk, double heads, double parts) const;
  double attend(const exec::Dials& dials) const;
  double finish(double rows, double chunk) const;
  double overlapped(double compute, Copies copies, double not_hidden) const;
  void set(Stage& stage, double compute, Copies copies, double not_hidden) const;
  void resident_stages(const exec::Dials& dials, Estimate& estimate) const;
  void grouped_stages(const exec::Dials& dials, Estimate& estimate) const;
  void embed_and_heads(const exec::Dials& dials, Estimate& estimate) const;
  void weights(const exec::Dials& dials, Estimate& estimate) const;
  double upload(double bytes) const { return bytes / rates_.upload_bytes; }
  double download(double bytes) const { return bytes / rates_.download_bytes; }

  Calibration rates_;
  const exec::WeightLoader& loader_;
  const spec::ModelSpec& spec_;
  const spec::Layout& layout_;
  bool device_is_host_;
  double weight_rate_;  // of the host's share in streaming, bytes a second
  Merging merging_;
  double tokens_, element_;
  Layer qkv_, out_, fc1_, fc2_;
};

}  // namespace h3s::plan
