#include "exec/alternating_runs.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "backend/cuda/cuda_backend.h"
#include "exec/engine_fixture.h"

namespace h3s::test {
namespace {

struct Outputs {
  std::vector<float> video, audio;
  bool operator==(const Outputs&) const = default;
};

std::int64_t anonymous_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  long long kib = 0;
  for (std::string line; std::getline(rollup, line);)
    if (std::sscanf(line.c_str(), "Anonymous: %lld kB", &kib) == 1) return kib * 1024;
  return 0;
}

std::int64_t device_bytes_taken(const backend::DeviceChoice& device) {
  if (device.on_cpu()) return 0;
  return cuda::devices()[static_cast<std::size_t>(device.cuda)].total_bytes - cuda::free_bytes(device.cuda);
}

spec::JobSpec longer_job() {
  spec::JobSpec job = ragged_job();
  job.latent_t = 11;
  return job;
}

}  // namespace

std::vector<RunFigures> alternate(const backend::DeviceChoice& device, int count) {
  const CheckpointFile file(small_spec(), /*int8=*/true);
  const SmallJob jobs[2] = {{small_spec(), ragged_job()}, {small_spec(), longer_job()}};
  const exec::Dials dials[2] = {
      {.schedule = exec::Schedule::kResident},
      {.schedule = exec::Schedule::kFlat, .head_group = 2, .q_chunk = 256, .kv_chunk = 128}};
  mem::Accountant books(backend::make_allocator(device));
  const auto engine = backend::make_backend(device, books);
  std::int64_t at_rest = 0;
  for (const mem::Space space : mem::kSpaces) at_rest += books.report(space).reserved_bytes;

  std::optional<Outputs> first[2];
  std::vector<RunFigures> runs;
  runs.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const SmallJob& job = jobs[i % 2];
    Outputs out{std::vector<float>(job.inputs.video.size()), std::vector<float>(job.inputs.audio.size())};
    RunFigures run;
    {
      exec::Session session(*engine, books, file.get(), job.layout, {.dials = dials[i % 2]});
      session.set_conditioning(job.conditioning());
      const auto begin = std::chrono::steady_clock::now();
      session.forward(job.inputs.video.data(), job.inputs.audio.data(), 0.7f, out.video.data(),
                      out.audio.data());
      run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (!first[i % 2]) first[i % 2] = out;
    run.equal = *first[i % 2] == out;
    for (const mem::Space space : mem::kSpaces) run.booked_bytes += books.report(space).reserved_bytes;
    run.booked_bytes -= at_rest;
    run.anonymous_bytes = anonymous_bytes();
    run.device_bytes = device_bytes_taken(device);
    runs.push_back(run);
  }
  return runs;
}

void store_figures(const backend::DeviceChoice& device, const std::vector<RunFigures>& runs) {
  const char* path = std::getenv("H3S_FIGURES");
  if (path == nullptr) return;
  nlohmann::ordered_json out = {
      {"device", backend::describe(device)},
      {"runs", runs.size()},
      {"shapes", {"the short job, resident", "the long job, flat with 2 heads at a time"}},
      {"equal", std::all_of(runs.begin(), runs.end(), [](const RunFigures& run) { return run.equal; })}};
  for (const RunFigures& run : runs) {
    out["milliseconds"].push_back(std::round(1e6 * run.seconds) / 1e3);
    out["anonymous_bytes"].push_back(run.anonymous_bytes);
    out["booked_bytes"].push_back(run.booked_bytes);
    if (!device.on_cpu()) out["device_bytes"].push_back(run.device_bytes);
  }
  std::ofstream(path) << out.dump() << '\n';
}

}  // namespace h3s::test
