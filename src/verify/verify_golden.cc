#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include <unistd.h>

#include "backend/cpu/cpu_backend.h"
#include "base/bytes.h"
#include "base/dispatch.h"
#include "ops/ops.h"
#include "verify/captured_run.h"
#include "verify/golden.h"
#include "verify/verify.h"

namespace h3s::verify {
namespace {

// f32 compute against the stored f32 result: the spread of two orders of summation, at small and at real
// width.
constexpr double kSmallF32Bound = 2e-6;
constexpr double kSampledF32Bound = 5e-6;
// A bf16 time embedding is stored rounded: two roundings of nearly equal values differ by at most one unit.
constexpr double kTimeEmbeddingBound = 0x1p-8;
constexpr std::int64_t kSampleStep = 8;  // video_out_sample keeps every 8th row and column

class TemporaryFile {
 public:
  TemporaryFile() {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() /
             fmt::format("h3stream-verify-{}-{}.safetensors", ::getpid(), count++))
                .string();
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

template <typename T>
std::vector<double> stored_doubles(const Golden& golden, const std::string& name) {
  const io::TensorInfo& info = golden.file.at(name);
  if (info.bytes() != static_cast<std::uint64_t>(info.elements()) * sizeof(T))
    fail(Status::kBadFile, "{}: tensor \"{}\" has dtype {}", golden.file.path(), name,
         dtype_name(info.dtype));
  std::vector<T> values(static_cast<std::size_t>(info.elements()));
  std::memcpy(values.data(), golden.file.data(info), info.bytes());
  return {values.begin(), values.end()};
}

void check_layout(const Golden& golden, const spec::Layout& layout, const Capture& capture,
                  std::vector<Check>& checks) {
  if (golden.has("position_ids")) {
    std::vector<double> ids(static_cast<std::size_t>(layout.tokens() * 3));
    layout.positions(0, layout.tokens(), ids.data());
    checks.push_back(check_equal("position_ids", ids, stored_doubles<double>(golden, "position_ids")));
  }
  if (golden.has("mod_segments")) {
    std::vector<double> segments;
    for (const kernels::ModSegment& s : capture.timesteps.segments)
      for (const std::int64_t v : {s.start, s.stop, s.row}) segments.push_back(static_cast<double>(v));
    checks.push_back(
        check_equal("mod_segments", segments, stored_doubles<std::int64_t>(golden, "mod_segments")));
  }
}

// Our rotation table in the file's shape: [[cos, -sin], [sin, cos]] per pair.
std::vector<float> rope_matrices(const Golden& golden, const spec::Layout& layout,
                                 const checkpoint::Checkpoint& checkpoint) {
  constexpr std::int64_t kPairs = kernels::kRopePairs;
  std::vector<double> ids(static_cast<std::size_t>(layout.tokens() * 3));
  layout.positions(0, layout.tokens(), ids.data());
  std::vector<float> frequencies(spec::kRopeFrequencies);
  std::memcpy(frequencies.data(), checkpoint.data(checkpoint.tensor("rope.inv_freq")),
              frequencies.size() * 4);
  std::vector<float> table(static_cast<std::size_t>(layout.tokens() * 2 * kPairs));
  const auto backend = cpu::make_definition_backend();
  dispatch_dtype<float, BF16>(golden.compute, "rope", [&]<typename T>() {
    std::vector<T> values(table.size());
    ops::rope_table(*backend, {.positions = ids.data(),
                               .inv_freq = frequencies.data(),
                               .table = values.data(),
                               .dtype = golden.compute,
                               .m = layout.tokens()});
    std::transform(values.begin(), values.end(), table.begin(), [](T v) { return to_float(v); });
  });
  std::vector<float> matrices;
  for (std::int64_t row = 0; row < layout.tokens(); ++row)
    for (std::int64_t i = 0; i < kPairs; ++i) {
      const float c = table[static_cast<std::size_t>(row * 2 * kPairs + i)];
      const float s = table[static_cast<std::size_t>(row * 2 * kPairs + kPairs + i)];
      matrices.insert(matrices.end(), {c, -s, s, c});
    }
  return matrices;
}

void check_rope(const Golden& golden, const spec::Layout& layout, const checkpoint::Checkpoint& checkpoint,
                std::vector<Check>& checks) {
  if (!golden.has("rope")) return;
  const std::vector<float> ours = rope_matrices(golden, layout, checkpoint);
  checks.push_back(golden.compute == DType::kBF16
                       ? check_equal("rope", ours, golden.floats("rope"))
                       : check_f32("rope", ours, golden.floats("rope"), kSmallF32Bound));
}

void check_time_embedding(const Golden& golden, const Capture& capture, std::vector<Check>& checks) {
  const std::vector<float>& ours = capture.tensors.at("t_emb");
  const std::vector<float> stored = golden.floats("t_emb");
  if (golden.spec.curve())
    checks.push_back(check_equal("t_emb", ours, stored));
  else
    checks.push_back(check_f32("t_emb", ours, stored,
                               golden.compute == DType::kF32 ? kSmallF32Bound : kTimeEmbeddingBound));
}

// Every kSampleStep-th row and column of [C, T, h, w].
std::vector<float> sample_video(const std::vector<float>& video, const spec::JobSpec& job) {
  std::vector<float> sample;
  const std::int64_t planes = static_cast<std::int64_t>(video.size()) / (job.latent_h * job.latent_w);
  for (std::int64_t p = 0; p < planes; ++p)
    for (std::int64_t y = 0; y < job.latent_h; y += kSampleStep)
      for (std::int64_t x = 0; x < job.latent_w; x += kSampleStep)
        sample.push_back(video[static_cast<std::size_t>((p * job.latent_h + y) * job.latent_w + x)]);
  return sample;
}

// Our tensor as the file stores it under `stored_name`.
std::vector<float> as_stored(const Golden& golden, const Capture& capture, const std::string& stored_name) {
  if (stored_name == "video_out_sample") return sample_video(capture.tensors.at("video_out"), golden.job);
  const std::string suffix = "_rows";
  const bool rows = stored_name.ends_with(suffix);
  return capture.tensors.at(rows ? stored_name.substr(0, stored_name.size() - suffix.size()) : stored_name);
}

std::vector<std::string> compared_names(const Golden& golden) {
  if (golden.sampled) return {"embed_rows", "block0_rows", "video_out_sample", "audio_out"};
  std::vector<std::string> names{"embed"};
  for (std::int64_t i = 0; i < golden.spec.layers; ++i) names.push_back(fmt::format("block{}", i));
  names.insert(names.end(), {"video_out", "audio_out"});
  return names;
}

// The quantised tensors of the file against those our quantiser made from the same weights.
void check_quantiser(const Golden& golden, const checkpoint::Checkpoint& checkpoint,
                     std::vector<Check>& checks) {
  Check check{.name = "w.* (quantiser)", .ok = true, .rule = "every code and scale equal"};
  for (const io::TensorInfo& stored : golden.file.tensors()) {
    if (!stored.name.starts_with("w.")) continue;
    const io::TensorInfo* ours = checkpoint.file().find(stored.name.substr(2));
    check.elements += stored.elements();
    check.ok = check.ok && ours != nullptr && ours->bytes() == stored.bytes() &&
               std::memcmp(checkpoint.data(*ours), golden.file.data(stored), stored.bytes()) == 0;
  }
  if (check.elements > 0) checks.push_back(check);
}

class GoldenRun {
 public:
  GoldenRun(const std::string& path, const Progress& progress, const backend::DeviceChoice& device)
      : golden_(Golden::open(path)), progress_(progress), device_(device), layout_(golden_.job) {
    report_.path = path;
  }

  Report run(const std::vector<NamedPlan>& plans) {
    if (!can_rebuild(golden_)) {
      report_.skipped = fmt::format("weight format {} is not supported", golden_.format);
      return report_;
    }
    const std::uint64_t bytes = checkpoint_bytes(golden_);
    say(fmt::format("making the checkpoint, {} of temporary disk",
                    format_bytes(static_cast<std::int64_t>(bytes))));
    std::optional<TemporaryFile> file(std::in_place);
    write_checkpoint(golden_, file->path());
    const auto checkpoint = checkpoint::Checkpoint::open(file->path());
    file.reset();  // the mapping keeps the bytes; nothing is left behind however this ends
    const Capture first = run_plans(checkpoint, plans);
    check_layout(golden_, layout_, first, report_.checks);
    check_rope(golden_, layout_, checkpoint, report_.checks);
    check_time_embedding(golden_, first, report_.checks);
    check_quantiser(golden_, checkpoint, report_.checks);
    check_tensors(checkpoint, first, plans.front());
    return report_;
  }

 private:
  void say(const std::string& what) const {
    if (progress_)
      progress_(fmt::format("{}: {}", std::filesystem::path(report_.path).filename().string(), what));
  }

  CaptureJob job(const checkpoint::Checkpoint& checkpoint, DType compute) const {
    CaptureJob job{checkpoint, layout_, golden_.inputs, golden_.timesteps, golden_.sigma,
                   compute,    {},      device_};
    if (golden_.sampled)
      for (const double row : stored_doubles<std::int64_t>(golden_, "rows"))
        job.rows.push_back(static_cast<std::int64_t>(row));
    return job;
  }

  Capture run_plans(const checkpoint::Checkpoint& checkpoint, const std::vector<NamedPlan>& plans) {
    std::optional<Capture> first;
    for (const NamedPlan& plan : plans) {
      say(plan.describe());
      const Capture capture = run_captured(job(checkpoint, golden_.compute), plan);
      PlanResult result{.plan = plan, .peak_bytes = capture.peak_bytes};
      if (first) result.difference = first_difference(*first, capture);
      result.equal = result.difference.empty();
      report_.plans.push_back(result);
      if (!first) first = capture;
    }
    return *first;
  }

  // The f32 results that errors are taken against: the stored ones of the same weights, or our own forward
  // where the stored file has quantised weights or there is none.
  std::vector<std::vector<float>> yardsticks(const checkpoint::Checkpoint& checkpoint,
                                             const NamedPlan& plan) const {
    std::vector<std::vector<float>> values;
    const std::string sibling = golden_.f32_sibling();
    if (!sibling.empty()) {
      const Golden f32 = Golden::open(sibling);
      for (const std::string& name : compared_names(golden_)) values.push_back(f32.floats(name));
      return values;
    }
    say("own f32 forward as yardstick");
    const Capture f32 = run_captured(job(checkpoint, DType::kF32), plan);
    for (const std::string& name : compared_names(golden_)) values.push_back(as_stored(golden_, f32, name));
    return values;
  }

  void check_tensors(const checkpoint::Checkpoint& checkpoint, const Capture& capture,
                     const NamedPlan& plan) {
    const std::vector<std::string> names = compared_names(golden_);
    if (golden_.compute == DType::kF32) {
      for (const std::string& name : names)
        report_.checks.push_back(check_f32(name, as_stored(golden_, capture, name), golden_.floats(name),
                                           golden_.sampled ? kSampledF32Bound : kSmallF32Bound));
      return;
    }
    const auto f32 = yardsticks(checkpoint, plan);
    const double distance_bound = golden_.format == "bf16" ? kSharedRoundings : kIndependentCodes;
    for (std::size_t i = 0; i < names.size(); ++i)
      report_.checks.push_back(check_ratio(names[i], as_stored(golden_, capture, names[i]),
                                           golden_.floats(names[i]), f32[i], distance_bound));
  }

  Golden golden_;
  const Progress& progress_;
  const backend::DeviceChoice device_;
  spec::Layout layout_;
  Report report_;
};

}  // namespace

bool Report::ok() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.ok; }) &&
         std::all_of(plans.begin(), plans.end(), [](const PlanResult& p) { return p.equal; });
}

Report verify_golden(const std::string& path, const std::vector<NamedPlan>& plans, const Progress& progress,
                     const backend::DeviceChoice& device) {
  H3S_ASSERT(!plans.empty());
  return GoldenRun(path, progress, device).run(plans);
}

}  // namespace h3s::verify
