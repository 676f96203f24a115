#include "sample/state.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace h3s::sample {
namespace {

constexpr const char* kVersionKey = "h3s_state";
constexpr int kVersion = 1;
constexpr const char* kStepsDoneKey = "steps_done";
constexpr std::string_view kExtension = ".safetensors";

// FNV-1a over 64 bits: tells files apart that differ by accident, not by intent.
class Fnv1a {
 public:
  void add(const void* data, std::size_t bytes) {
    for (const auto* p = static_cast<const unsigned char*>(data); bytes > 0; ++p, --bytes)
      hash_ = (hash_ ^ *p) * 0x100000001B3u;
  }
  void add(std::uint64_t value) { add(&value, sizeof value); }
  void add(std::string_view text) {
    add(text.size());
    add(text.data(), text.size());
  }
  std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325u;
};

Fnv1a hash_header(const io::SafetensorsReader& file) {
  Fnv1a hash;
  hash.add(file.file_bytes());
  for (const io::TensorInfo& info : file.tensors()) {
    hash.add(info.name);
    hash.add(dtype_name(info.dtype));
    for (const std::int64_t size : info.shape) hash.add(static_cast<std::uint64_t>(size));
    hash.add(info.begin);
  }
  for (const auto& [key, value] : file.metadata()) {
    hash.add(key);
    hash.add(value);
  }
  return hash;
}

[[noreturn]] void reject(const io::SafetensorsReader& file, const std::string& key,
                         const std::string& reason) {
  fail(Status::kBadFile, "{}: {}: {}", file.path(), key, reason);
}

std::string metadata_value(const io::SafetensorsReader& file, const std::string& key) {
  const auto entry = file.metadata().find(key);
  return entry == file.metadata().end() ? "nothing" : entry->second;
}

void check_settings(const io::SafetensorsReader& file, const Settings& settings) {
  std::vector<std::string> differences;
  Settings now = settings;  // and what the stopped run alone had, a LoRA for instance
  for (const auto& [name, saved] : file.metadata())
    if (name != kVersionKey && name != kStepsDoneKey) now.try_emplace(name, "nothing");
  for (const auto& [name, value] : now)
    if (const std::string saved = metadata_value(file, name); saved != value)
      differences.push_back(fmt::format("{} was {}, is {}", name, saved, value));
  if (!differences.empty())
    fail(Status::kInvalidArgument, "{}: cannot resume, settings differ: {}", file.path(),
         fmt::join(differences, "; "));
}

// A tensor of exactly `count` floats.
const std::byte* floats(const io::SafetensorsReader& file, const char* key, std::size_t count) {
  const io::TensorInfo& info = file.at(key);
  if (info.dtype != DType::kF32 || info.shape != std::vector<std::int64_t>{static_cast<std::int64_t>(count)})
    reject(file, key,
           fmt::format("expected F32 [{}], got {} [{}]", count, dtype_name(info.dtype),
                       fmt::join(info.shape, ", ")));
  return file.data(info);
}

std::int64_t read_steps_done(const io::SafetensorsReader& file, std::int64_t num_steps) {
  const std::string text = metadata_value(file, kStepsDoneKey);
  std::int64_t steps = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0 || steps > num_steps)
    reject(file, kStepsDoneKey, fmt::format("expected 0 to {}, got {}", num_steps, text));
  return steps;
}

struct State {
  std::int64_t steps_done;
  const std::byte* values;  // floats in the file, at any alignment
};

void check_finite(const io::SafetensorsReader& file, const std::byte* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    if (!std::isfinite(value)) reject(file, "state", fmt::format("element {} is {}", i, value));
  }
}

State read_state(const io::SafetensorsReader& file, const SamplerOptions& options, const Settings& settings) {
  if (metadata_value(file, kVersionKey) != std::to_string(kVersion))
    reject(file, kVersionKey, "not a state file of this version");
  check_settings(file, settings);
  const std::vector<float>& sigmas = options.sigmas;
  if (std::memcmp(floats(file, "sigmas", sigmas.size()), sigmas.data(), sigmas.size() * sizeof(float)) != 0)
    reject(file, "sigmas", "the schedule differs");
  const auto count = static_cast<std::size_t>(options.video_elements + options.audio_elements);
  const State state{read_steps_done(file, static_cast<std::int64_t>(sigmas.size()) - 1),
                    floats(file, "state", count)};
  check_finite(file, state.values, count);
  return state;
}

}  // namespace

std::string state_path(const std::string& output_path) {
  std::string_view stem = output_path;
  if (stem.ends_with(kExtension)) stem.remove_suffix(kExtension.size());
  return fmt::format("{}.state{}", stem, kExtension);
}

std::string header_fingerprint(const io::SafetensorsReader& file) {
  return hash_header(file).hex();
}

std::string content_fingerprint(const io::SafetensorsReader& file) {
  Fnv1a hash = hash_header(file);
  for (const io::TensorInfo& info : file.tensors()) hash.add(file.data(info), info.bytes());
  return hash.hex();
}

void save_state(const std::string& path, const EulerSampler& sampler, const Settings& settings) {
  const std::vector<float>& sigmas = sampler.options().sigmas;
  std::map<std::string, std::string> metadata = settings;
  metadata[kVersionKey] = std::to_string(kVersion);
  metadata[kStepsDoneKey] = std::to_string(sampler.steps_done());
  io::SafetensorsWriter writer(path,
                               {{"state", DType::kF32, {sampler.elements()}},
                                {"sigmas", DType::kF32, {static_cast<std::int64_t>(sigmas.size())}}},
                               metadata);
  writer.write(sampler.state(), static_cast<std::uint64_t>(sampler.elements()) * sizeof(float));
  writer.write(sigmas.data(), sigmas.size() * sizeof(float));
  writer.finish();
}

void check_state(const std::string& path, const SamplerOptions& options, const Settings& settings) {
  read_state(io::SafetensorsReader::open(path), options, settings);
}

void load_state(const std::string& path, EulerSampler& sampler, const Settings& settings) {
  const io::SafetensorsReader file = io::SafetensorsReader::open(path);
  const State state = read_state(file, sampler.options(), settings);
  sampler.restore(state.steps_done, state.values);
}

}  // namespace h3s::sample
