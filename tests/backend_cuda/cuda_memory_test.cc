// Planned against what the driver says: a run takes from the card what the books say, and no more.
//
// The driver hands out memory in granules, so a buffer may cost up to one more than it holds; kernels are
// loaded when they are first used, so a first run also pays for their code. Runs alone: other work on the
// card would be counted.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/select.h"
#include "base/bytes.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"

namespace h3s::test {
namespace {

using mem::Space;

constexpr std::int64_t kGranuleBytes = std::int64_t{2} << 20;

std::int64_t used_bytes() {
  std::size_t available = 0, total = 0;
  H3S_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return static_cast<std::int64_t>(total - available);
}

// Passes allocations on, and after each notes what the driver says is in use.
class WatchedAllocator final : public mem::RawAllocator {
 public:
  struct Seen {
    std::int64_t allocations = 0, most_used_bytes = 0;
  };
  explicit WatchedAllocator(Seen& seen) : seen_(seen), inner_(cuda::make_allocator(0)) {}
  void* allocate(Space space, std::int64_t bytes) override {
    void* data = inner_->allocate(space, bytes);
    if (space == Space::kDevice) ++seen_.allocations;
    seen_.most_used_bytes = std::max(seen_.most_used_bytes, used_bytes());
    return data;
  }
  void release(Space space, void* data, std::int64_t bytes) noexcept override {
    seen_.most_used_bytes = std::max(seen_.most_used_bytes, used_bytes());
    inner_->release(space, data, bytes);
  }

 private:
  Seen& seen_;
  const std::unique_ptr<mem::RawAllocator> inner_;
};

struct Measured {
  std::int64_t planned_bytes = 0, booked_bytes = 0;
  WatchedAllocator::Seen seen;
};

Measured measure(const CheckpointFile& file, const SmallJob& job, const exec::Dials& dials) {
  const exec::SessionOptions options{.dials = dials};
  const exec::Holdings fixed{{Space::kDevice, cuda::workspace_bytes(), "workspace"}};
  Measured m;
  m.planned_bytes =
      exec::measure_footprint(file.get(), job.layout, options, false, fixed).peak_bytes(Space::kDevice);
  mem::Accountant accountant(std::make_unique<WatchedAllocator>(m.seen));
  const auto backend = cuda::make_backend(0, accountant);
  exec::Session session(*backend, accountant, file.get(), job.layout, options);
  session.set_conditioning(job.conditioning());
  std::vector<float> video(job.inputs.video.size()), audio(job.inputs.audio.size());
  session.on_block([&](std::int64_t, std::int64_t) {
    m.seen.most_used_bytes = std::max(m.seen.most_used_bytes, used_bytes());
  });
  session.forward(job.inputs.video.data(), job.inputs.audio.data(), 0.5f, video.data(), audio.data());
  m.booked_bytes = accountant.peak_bytes(Space::kDevice);
  return m;
}

std::int64_t round_up(std::int64_t bytes, std::int64_t step) {
  return (bytes + step - 1) / step * step;
}

// Hidden 1024 and some thousand tokens: enough bytes for one percent to mean something.
TEST(CudaMemory, TheDriverSaysWhatWasPlanned) {
  const spec::ModelSpec spec{.hidden = 1024,
                             .layers = 2,
                             .refiner_layers = 1,
                             .heads = 8,
                             .ffn = 2816,
                             .text_dim = 256,
                             .timestep_dim = 64,
                             .time_hidden = 128,
                             .time_dim = 8,
                             .curve_grid = 17};
  const CheckpointFile file(spec, true);
  const SmallJob job(spec, {.text_len = 40, .latent_t = 20, .latent_h = 48, .latent_w = 84, .audio_t = 101});
  const std::vector<exec::Dials> plans{{.schedule = exec::Schedule::kResident,
                                        .q_chunk = 2048,
                                        .kv_chunk = 2048,
                                        .mlp_chunk = 2048,
                                        .head_chunk = 2048},
                                       {.schedule = exec::Schedule::kHeadGroups,
                                        .head_group = 2,
                                        .q_chunk = 1024,
                                        .kv_chunk = 1024,
                                        .mlp_chunk = 1024,
                                        .head_chunk = 1024},
                                       {.schedule = exec::Schedule::kFlat,
                                        .head_group = 1,
                                        .q_chunk = 512,
                                        .kv_chunk = 512,
                                        .mlp_chunk = 512,
                                        .head_chunk = 512}};
  const std::optional<std::int64_t> context = cuda::context_bytes(0);
  const std::int64_t with_context = used_bytes();
  const std::int64_t others = context ? std::max<std::int64_t>(0, with_context - *context) : 0;
  for (const exec::Dials& dials : plans) measure(file, job, dials);  // loads every kernel
  const std::int64_t with_kernels = used_bytes();
  std::printf("a context took %s; in use with it %s, with all kernels of a run loaded %s\n",
              context ? format_bytes(*context).c_str() : "an unknown amount",
              format_bytes(with_context).c_str(), format_bytes(with_kernels).c_str());
  // The default budget leaves room for what a first run loads beside its buffers.
  EXPECT_LE(with_kernels - with_context, cuda::free_bytes(0) - backend::default_device_budget({.cuda = 0}));
  for (const exec::Dials& dials : plans) {
    const Measured m = measure(file, job, dials);
    const std::int64_t driver = m.seen.most_used_bytes - with_kernels;
    std::printf("%s: planned %s, booked %s, the driver says %s for %ld buffers\n", dials.describe().c_str(),
                format_bytes(m.planned_bytes).c_str(), format_bytes(m.booked_bytes).c_str(),
                format_bytes(driver).c_str(), static_cast<long>(m.seen.allocations));
    EXPECT_EQ(m.booked_bytes, m.planned_bytes) << dials.describe();
    EXPECT_GE(driver, m.booked_bytes - m.booked_bytes / 100 - kGranuleBytes) << dials.describe();
    EXPECT_LE(driver, m.booked_bytes + m.seen.allocations * kGranuleBytes) << dials.describe();
    // As `run --vram` plans: the context, what is loaded later, and what the session and the backend hold.
    EXPECT_LE(m.seen.most_used_bytes - others,
              context.value_or(with_context) + backend::kLoadedLaterBytes + m.planned_bytes)
        << dials.describe();
    EXPECT_LE(round_up(used_bytes() - with_kernels, kGranuleBytes), kGranuleBytes) << "left behind";
  }
}

}  // namespace
}  // namespace h3s::test
