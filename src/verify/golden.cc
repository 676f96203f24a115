#include "verify/golden.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/dispatch.h"
#include "base/error.h"
#include "checkpoint/formats.h"
#include "checkpoint/generator.h"
#include "checkpoint/synth.h"
#include "spec/patchify.h"

namespace h3s::verify {
namespace {

using nlohmann::json;

// Pixel frames of the two keyframes of the fl2va files.
constexpr std::array<std::int64_t, 2> kKeyframeFrames{0, 16};

[[noreturn]] void bad(const io::SafetensorsReader& file, const std::string& reason) {
  fail(Status::kBadFile, "{}: not a reference file: {}", file.path(), reason);
}

const std::string& text(const io::SafetensorsReader& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) bad(file, fmt::format("metadata \"{}\" is missing", key));
  return it->second;
}

std::string text_or(const io::SafetensorsReader& file, const std::string& key, const std::string& fallback) {
  const auto it = file.metadata().find(key);
  return it == file.metadata().end() ? fallback : it->second;
}

json parsed(const io::SafetensorsReader& file, const std::string& key) {
  json value = json::parse(text(file, key), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) bad(file, fmt::format("metadata \"{}\" is not JSON", key));
  return value;
}

template <typename T>
T number(const io::SafetensorsReader& file, const std::string& key) {
  const json value = parsed(file, key);
  if (!value.is_number()) bad(file, fmt::format("metadata \"{}\" is not a number", key));
  return value.get<T>();
}

spec::ModelSpec read_spec(const io::SafetensorsReader& file) {
  const json config = parsed(file, "config");
  if (!config.is_object()) bad(file, "metadata \"config\" is not an object");
  spec::ModelSpec spec;
  const std::map<std::string, std::int64_t*> fields{{"hidden_size", &spec.hidden},
                                                    {"num_layers", &spec.layers},
                                                    {"token_refiner_num_layers", &spec.refiner_layers},
                                                    {"num_attention_heads", &spec.heads},
                                                    {"attention_head_dim", &spec.head_dim},
                                                    {"ffn_hidden_size", &spec.ffn},
                                                    {"text_dim", &spec.text_dim},
                                                    {"timestep_input_dim", &spec.timestep_dim},
                                                    {"time_embed_hidden_size", &spec.time_hidden},
                                                    {"time_embed_dim", &spec.time_dim},
                                                    {"adaln_curve_grid", &spec.curve_grid}};
  for (const auto& [key, value] : config.items()) {
    const auto field = fields.find(key);
    if (field == fields.end()) bad(file, fmt::format("config \"{}\" is unknown", key));
    if (!value.is_number_integer() || value.get<std::int64_t>() <= 0)
      bad(file, fmt::format("config \"{}\" must be a positive integer", key));
    *field->second = value.get<std::int64_t>();
  }
  return spec;
}

// Text length, latent_t, latent_h, latent_w, audio steps: a list, or an object in the sampled files.
void read_sizes(const io::SafetensorsReader& file, spec::JobSpec& job) {
  const bool list = file.metadata().contains("sizes");
  const json sizes = parsed(file, list ? "sizes" : "inputs");
  constexpr std::array<const char*, 5> kNames{"text_len", "latent_t", "latent_h", "latent_w", "audio_t"};
  const std::array<std::int64_t*, 5> fields{&job.text_len, &job.latent_t, &job.latent_h, &job.latent_w,
                                            &job.audio_t};
  if (list ? !sizes.is_array() || sizes.size() != fields.size() : !sizes.is_object())
    bad(file, "sizes malformed");
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const json value = list ? sizes[i] : sizes.value(kNames[i], json());
    if (!value.is_number_integer()) bad(file, fmt::format("size \"{}\" is not an integer", kNames[i]));
    *fields[i] = value.get<std::int64_t>();
  }
}

// The shape of a latent [1, C, ..]: `rank` dimensions, the first 1, the second `channels`.
const std::vector<std::int64_t>& latent_shape(const Golden& golden, const std::string& name, std::size_t rank,
                                              std::int64_t channels) {
  const auto& shape = golden.file.at(name).shape;
  if (shape.size() != rank || shape[0] != 1 || shape[1] != channels)
    bad(golden.file,
        fmt::format("tensor \"{}\" must have {} dimensions, [1, {}, ...]", name, rank, channels));
  return shape;
}
const std::vector<std::int64_t>& video_shape(const Golden& golden, const std::string& name) {
  return latent_shape(golden, name, 5, golden.spec.video_channels);
}
const std::vector<std::int64_t>& audio_shape(const Golden& golden, const std::string& name) {
  return latent_shape(golden, name, 4, golden.spec.audio_channels);
}

// Appends a condition latent's rows to the visual or audio list.
void append_video_rows(const Golden& golden, const std::string& name, std::vector<float>& rows) {
  const auto& shape = video_shape(golden, name);
  const spec::VideoShape video{shape[1], shape[2], shape[3], shape[4]};
  const std::vector<float> latent = golden.floats(name);
  const std::size_t begin = rows.size();
  rows.resize(begin + static_cast<std::size_t>(video.rows() * video.columns()));
  spec::patchify_rows(latent.data(), video, 0, video.rows(), rows.data() + begin);
}

void append_audio_rows(const Golden& golden, const std::string& name, std::vector<float>& rows) {
  const auto& shape = audio_shape(golden, name);
  const spec::AudioShape audio{shape[1], shape[3]};
  const std::vector<float> latent = golden.floats(name);
  const std::size_t begin = rows.size();
  rows.resize(begin + static_cast<std::size_t>(audio.rows() * audio.columns()));
  spec::pack_audio_rows(latent.data(), audio, 0, audio.rows(), rows.data() + begin);
}

void read_keyframes(Golden& golden) {
  for (std::size_t i = 0; i < kKeyframeFrames.size(); ++i) {
    const std::string name = fmt::format("cond.kf{}", i);
    if (!golden.has(name)) continue;
    golden.job.keyframes.push_back(
        {.frame_idx = kKeyframeFrames[i], .latent_t = video_shape(golden, name)[2]});
    append_video_rows(golden, name, golden.inputs.visual_rows);
  }
}

void read_references(Golden& golden) {
  if (golden.has("cond.img")) {
    const auto s = video_shape(golden, "cond.img");
    golden.job.references.push_back(
        {.kind = spec::ReferenceKind::kImage, .latent_t = s[2], .latent_h = s[3], .latent_w = s[4]});
    append_video_rows(golden, "cond.img", golden.inputs.visual_rows);
  }
  if (golden.has("cond.vid")) {
    const auto s = video_shape(golden, "cond.vid");
    const std::int64_t sound = golden.has("cond.vaud") ? audio_shape(golden, "cond.vaud")[3] : 0;
    golden.job.references.push_back({.kind = spec::ReferenceKind::kVideo,
                                     .latent_t = s[2],
                                     .latent_h = s[3],
                                     .latent_w = s[4],
                                     .audio_t = sound});
    append_video_rows(golden, "cond.vid", golden.inputs.visual_rows);
    if (sound > 0) append_audio_rows(golden, "cond.vaud", golden.inputs.audio_rows);
  }
  if (golden.has("cond.aud")) {
    golden.job.references.push_back(
        {.kind = spec::ReferenceKind::kAudio, .audio_t = audio_shape(golden, "cond.aud")[3]});
    append_audio_rows(golden, "cond.aud", golden.inputs.audio_rows);
  }
}

void read_tags(Golden& golden) {
  if (!golden.has("cond.text_token_tags")) return;
  const io::TensorInfo& info = golden.file.at("cond.text_token_tags");
  if (info.dtype != DType::kI64) bad(golden.file, "tensor \"cond.text_token_tags\" must be I64");
  golden.job.text_tags.resize(static_cast<std::size_t>(info.elements()));
  std::memcpy(golden.job.text_tags.data(), golden.file.data(info), info.bytes());
}

// Inputs a sampled file does not store.
std::vector<float> generated(const Golden& golden, const std::string& name, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  checkpoint::TensorGenerator::input(name, golden.seed).values(0, count, values.data());
  return values;
}

// An input that must have as many values as the sizes say.
std::vector<float> sized(const Golden& golden, const std::string& name, std::int64_t count) {
  if (golden.file.at(name).elements() != count)
    bad(golden.file, fmt::format("tensor \"{}\" has {} values, the sizes make {}", name,
                                 golden.file.at(name).elements(), count));
  return golden.floats(name);
}

void read_inputs(Golden& golden) {
  const spec::JobSpec& job = golden.job;
  const spec::VideoShape video{golden.spec.video_channels, job.latent_t, job.latent_h, job.latent_w};
  const spec::AudioShape audio{golden.spec.audio_channels, job.audio_t};
  if (!golden.sampled) {
    golden.inputs.text = sized(golden, "text_in", job.text_len * golden.spec.text_dim);
    golden.inputs.video = sized(golden, "video_in", video.elements());
    golden.inputs.audio = sized(golden, "audio_in", audio.elements());
    read_tags(golden);
    read_keyframes(golden);
    read_references(golden);
    return;
  }
  golden.inputs.text = generated(golden, "real.text", job.text_len * golden.spec.text_dim);
  golden.inputs.video = generated(golden, "real.video", video.elements());
  golden.inputs.audio = generated(golden, "real.audio", audio.elements());
}

}  // namespace

Golden Golden::open(const std::string& path) {
  Golden golden{.file = io::SafetensorsReader::open(path)};
  const io::SafetensorsReader& file = golden.file;
  const std::string& compute = text(file, "compute");
  if (compute != "torch.bfloat16" && compute != "torch.float32")
    bad(file, "compute type \"" + compute + "\"");
  golden.compute = compute == "torch.bfloat16" ? DType::kBF16 : DType::kF32;
  golden.format = text_or(file, "format", "bf16");
  golden.spec = read_spec(file);
  golden.seed = number<std::uint64_t>(file, "seed");
  golden.sigma = static_cast<float>(number<double>(file, "sigma"));
  if (!(golden.sigma >= 0 && golden.sigma <= 1)) bad(file, "metadata \"sigma\" must be 0 to 1");
  golden.sampled = file.find("rows") != nullptr;
  read_sizes(file, golden.job);
  (void)spec::Layout(golden.job);  // sizes that make a sequence, before anything is multiplied with them
  // No condition noise in these files; the small ones ran on a CPU, which divides, the sampled ones on a GPU.
  golden.timesteps = {.visual_aug = 1, .audio_aug = 1, .reciprocal_division = golden.sampled};
  read_inputs(golden);
  return golden;
}

std::vector<float> Golden::floats(const std::string& name) const {
  const io::TensorInfo& info = file.at(name);
  std::vector<float> values(static_cast<std::size_t>(info.elements()));
  dispatch_dtype<float, BF16, F16>(info.dtype, name, [&]<typename T>() {
    const std::byte* data = file.data(info);
    for (std::size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, data + i * sizeof(T), sizeof(T));
      values[i] = to_float(value);
    }
  });
  return values;
}

std::string Golden::f32_sibling() const {
  std::string path = file.path();
  const std::string ending = ".bf16.safetensors";
  if (compute != DType::kBF16 || format != "bf16" || !path.ends_with(ending)) return "";
  path.replace(path.size() - ending.size(), ending.size(), ".fp32.safetensors");
  return std::filesystem::exists(path) ? path : "";
}

namespace {

// The synthetic format of that name.
std::optional<checkpoint::WeightFormat> rebuilt_format(const Golden& golden) {
  if (golden.format == "bf16") return checkpoint::WeightFormat::kBF16;
  for (std::size_t i = 0; i < checkpoint::formats().size(); ++i) {
    const checkpoint::FormatRow& row = checkpoint::formats()[i];
    if (row.tagged && row.bind != nullptr && golden.format == row.name)
      return static_cast<checkpoint::WeightFormat>(i);
  }
  return std::nullopt;
}

}  // namespace

bool can_rebuild(const Golden& golden) {
  return rebuilt_format(golden).has_value();
}

namespace {

checkpoint::SynthOptions synth_options(const Golden& golden) {
  H3S_ASSERT(can_rebuild(golden));
  return {.spec = golden.spec, .format = *rebuilt_format(golden), .seed = golden.seed};
}

}  // namespace

std::uint64_t checkpoint_bytes(const Golden& golden) {
  return checkpoint::synthetic_data_bytes(synth_options(golden));
}

void write_checkpoint(const Golden& golden, const std::string& path) {
  checkpoint::write_synthetic_checkpoint(path, synth_options(golden), {});
}

}  // namespace h3s::verify
