// One job on one backend: holds the sequence, runs the network, chunk by chunk, as the dials say.
//
// The bits of the result depend on the checkpoint, the inputs and the compute type, never on the dials, the
// thread count or where anything lives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "exec/dials.h"
#include "exec/phase.h"
#include "kernels/backend.h"
#include "mem/accountant.h"
#include "spec/layout.h"

namespace h3s::exec {

// What the sequence holds beside the two targets. All float32 in host memory, kept alive by the caller while
// the Session lives; values are rounded to the compute type where stock does.
struct Conditioning {
  const float* text = nullptr;         // [text_len, text_dim]: text encoder states
  const float* visual_rows = nullptr;  // [rows, 96]: patchified latents of the cond and ref_img segments in
                                       // order, condition noise already added; null when there are none
  const float* audio_rows =
      nullptr;  // [rows, 32]: packed latents of cond_audio and ref_audio segments in order
};

struct SessionOptions {
  DType compute = DType::kBF16;  // bf16 or f32: the type of activations
  Dials dials;
  spec::TimestepOptions timesteps;
};

// Called when a block has finished; block_idx counts from 0 to layers - 1.
using BlockCallback = std::function<void(std::int64_t block_idx, std::int64_t layers)>;

// Sees intermediates, for checks only: rows of "embed", "block0", ... as they pass, in the compute type.
// `first_row` is the packed index of the first row.
using RowTap = std::function<void(const std::string& name, std::int64_t first_row, std::int64_t rows,
                                  const void* data, DType dtype, std::int64_t columns)>;

// Not thread-safe. Throws h3s::Error; after an error the session can only be destroyed, and then holds no
// memory.
class Session {
 public:
  Session(kernels::Backend& backend, mem::Accountant& accountant, const checkpoint::Checkpoint& checkpoint,
          const spec::Layout& layout, const SessionOptions& options);
  ~Session();

  // Runs text projection and token refiner, once per sampling run.
  void set_conditioning(const Conditioning& conditioning);

  // One evaluation of the network at video sigma `sigma` (fp32 schedule value).
  //   video_in  [C_v, T, h, w], audio_in [C_a, 2, A]: float32 host arrays, rounded to the compute type on
  //   entry video_out, audio_out: the same shapes; the velocity with stock's sign, rounded to the compute
  //   type
  void forward(const float* video_in, const float* audio_in, float sigma, float* video_out, float* audio_out);

  void on_block(BlockCallback callback);
  void on_rows(RowTap tap);
  // Tells `observer`, which must outlive the session, of every phase from now on.
  void add_observer(PhaseObserver& observer);

  // t_emb of the last forward: [unique timesteps, time_dim] as float32 values.
  const std::vector<float>& last_time_embedding() const;
  const spec::Timesteps& last_timesteps() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace h3s::exec
