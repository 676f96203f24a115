// What the process really holds while it runs: anonymous memory as the books say and no copy of the
// checkpoint; of the file's pages, those of the blocks in use.
#include <gtest/gtest.h>

#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "exec/engine_fixture.h"
#include "kernels/forwarding_backend.h"

namespace h3s::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // shadow memory is anonymous memory
#else
constexpr bool kSanitized = false;
#endif

struct Resident {
  std::int64_t anonymous = 0, file = 0;  // bytes
};

// Of this process, now.
Resident resident() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  Resident now;
  std::int64_t total = 0, kib = 0;
  for (std::string line; std::getline(rollup, line);) {
    if (std::sscanf(line.c_str(), "Rss: %ld kB", &kib) == 1) total = kib * 1024;
    if (std::sscanf(line.c_str(), "Anonymous: %ld kB", &kib) == 1) now.anonymous = kib * 1024;
  }
  now.file = total - now.anonymous;
  return now;
}

// Looks at the process at the end of every chunk of a block, when its weights have been read.
class WatchingBackend final : public kernels::ForwardingBackend {
 public:
  WatchingBackend(kernels::Backend& inner, const Resident& before)
      : ForwardingBackend(inner), before_(before) {}
  const Resident& most() const { return most_; }  // beyond what was there before

 protected:
  void op(const kernels::OpCall& call, kernels::RunOp run) override {
    run();
    if (std::string(call.name) != "gated_residual") return;
    const Resident now = resident();
    most_.anonymous = std::max(most_.anonymous, now.anonymous - before_.anonymous);
    most_.file = std::max(most_.file, now.file - before_.file);
  }

 private:
  Resident before_, most_;
};

// Twelve blocks of 10 MB.
spec::ModelSpec many_blocks() {
  spec::ModelSpec spec = small_spec();
  spec.hidden = 768;
  spec.ffn = 3072;
  spec.layers = 12;
  return spec;
}

TEST(ResidentMemory, AnonymousAsBookedAndFilePagesOfTheBlocksInUse) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const spec::ModelSpec spec = many_blocks();
  const CheckpointFile file(spec, /*int8=*/true);
  const auto file_bytes = static_cast<std::int64_t>(file.get().file().file_bytes());
  const SmallJob job(spec, ragged_job());
  std::vector<float> video(job.inputs.video.size()), audio(job.inputs.audio.size());
  mem::Accountant books(mem::make_heap_allocator());
  const Resident before = resident();
  ASSERT_GT(before.anonymous, 0) << "no /proc/self/smaps_rollup";

  const auto cpu = cpu::make_backend(2, books);
  WatchingBackend backend(*cpu, before);
  exec::Session session(backend, books, file.get(), job.layout, {});
  session.set_conditioning(job.conditioning());
  session.forward(job.inputs.video.data(), job.inputs.audio.data(), 0.5f, video.data(), audio.data());

  const Resident& most = backend.most();
  std::int64_t booked = 0;
  for (const mem::Space space : mem::kSpaces) booked += books.report(space).peak_reserved_bytes;
  constexpr std::int64_t kElse = 2 << 20;  // stacks of the threads, the heap's slack
  EXPECT_LE(most.anonymous, booked + kElse);
  // Two blocks of twelve, the matrices outside blocks and the program's own code.
  EXPECT_LE(most.file, file_bytes / 3);
  std::printf("booked %.1f MB, anonymous %.1f MB; file %.1f MB, of it resident at most %.1f MB\n",
              booked / 1e6, static_cast<double>(most.anonymous) / 1e6, static_cast<double>(file_bytes) / 1e6,
              static_cast<double>(most.file) / 1e6);
}

}  // namespace
}  // namespace h3s::test
