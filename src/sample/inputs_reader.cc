#include "sample/inputs_reader.h"

#include <algorithm>
#include <cstring>

#include "base/finite.h"
#include "io/json.h"
#include "sample/widen.h"

namespace h3s::sample {
namespace {

using nlohmann::json;

constexpr const char* kDescription = "h3s_inputs";  // metadata entry
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

InputsContent InputsReader::read() {
  const json about = description();
  refuse_other_fields(about, kDescription,
                      {"version", "latent_t", "latent_h", "latent_w", "audio_t", "keyframes", "references"});
  if (count(about, kDescription, "version", 0) != kVersion)
    reject(kDescription, "version must be {}, got {}", kVersion, about["version"].dump());
  read_sizes(about);
  read_text();
  read_tags();
  for (std::size_t i = 0; i < list(about, "keyframes").size(); ++i) read_keyframe(about["keyframes"][i], i);
  for (std::size_t i = 0; i < list(about, "references").size(); ++i)
    read_reference(about["references"][i], i);
  read_initial();
  refuse_unknown_keys();
  check_layout();
  return std::move(content_);
}

json InputsReader::description() const {
  const auto entry = file_.metadata().find(kDescription);
  if (entry == file_.metadata().end()) reject(kDescription, "the file's metadata has no such entry");
  return io::parse_json_object(entry->second, fmt::format("{}: {}", file_.path(), kDescription));
}

std::int64_t InputsReader::count(const json& object, const std::string& where, const char* field,
                                 std::int64_t low) const {
  const auto entry = object.find(field);
  if (entry == object.end()) reject(where, "{} is missing", field);
  if (!entry->is_number_integer() || *entry < low || *entry > kMaxCount)
    reject(where, "{} must be a whole number from {} to {}, got {}", field, low, kMaxCount,
           io::printable(entry->dump()));
  return entry->get<std::int64_t>();
}

void InputsReader::refuse_other_fields(const json& object, const std::string& where,
                                       std::initializer_list<const char*> fields) const {
  if (!object.is_object()) reject(where, "expected a JSON object");
  for (const auto& [name, value] : object.items())
    if (std::find(fields.begin(), fields.end(), name) == fields.end())
      reject(where, "unknown field \"{}\"", io::printable(name));
}

const json& InputsReader::list(const json& about, const char* field) const {
  static const json kEmpty = json::array();
  const auto entry = about.find(field);
  if (entry == about.end()) return kEmpty;
  if (!entry->is_array()) reject(kDescription, "{} must be a list", field);
  return *entry;
}

void InputsReader::read_sizes(const json& about) {
  spec::JobSpec& job = content_.job;
  job.latent_t = count(about, kDescription, "latent_t", 1);
  job.latent_h = count(about, kDescription, "latent_h", 1);
  job.latent_w = count(about, kDescription, "latent_w", 1);
  job.audio_t = count(about, kDescription, "audio_t", 1);
}

void InputsReader::read_text() {
  const io::TensorInfo* text = floats("text");
  if (text == nullptr) reject("text", "the file has no such tensor");
  Shape shape = text->shape;
  if (shape.size() == 3) {
    if (shape[0] != 1) reject("text", "batch must be 1, got {}", shape[0]);
    shape.erase(shape.begin());
  }
  if (shape.size() != 2 || shape[1] != model_.text_dim)
    reject("text", "expected [tokens, {}] or [1, tokens, {}], got {}", model_.text_dim, model_.text_dim,
           shape_text(text->shape));
  if (shape[0] == 0) reject("text", "there must be at least one token");
  content_.job.text_len = shape[0];
}

void InputsReader::read_tags() {
  known_keys_.insert("text_token_tags");
  const io::TensorInfo* info = file_.find("text_token_tags");
  if (info == nullptr) return;
  if (info->dtype != DType::kI64) reject(info->name, "expected I64, got {}", dtype_name(info->dtype));
  if (info->shape != Shape{content_.job.text_len})
    reject(info->name, "expected one tag for each of {} text tokens, got {}", content_.job.text_len,
           shape_text(info->shape));
  std::vector<std::int64_t>& tags = content_.job.text_tags;
  tags.resize(static_cast<std::size_t>(info->elements()));
  std::memcpy(tags.data(), file_.data(*info), info->bytes());
  const auto bad =
      std::find_if(tags.begin(), tags.end(), [](auto tag) { return tag < 0 || tag >= spec::kModalities; });
  if (bad != tags.end())
    reject(info->name, "tags must be 0 to {}, got {} at token {}", spec::kModalities - 1, *bad,
           bad - tags.begin());
}

void InputsReader::read_keyframe(const json& entry, std::size_t idx) {
  const std::string where = fmt::format("{}.keyframes[{}]", kDescription, idx);
  refuse_other_fields(entry, where, {"frame"});
  spec::Keyframe keyframe;
  keyframe.frame_idx = count(entry, where, "frame", 0);
  const std::string key = fmt::format("keyframe.{}", idx);
  if (const io::TensorInfo* latent = video_latent(key + ".latent")) {
    check_target_frame(*latent);
    keyframe.latent_t = latent->shape[2];
    content_.visual_latents.push_back(latent);
  }
  if (const io::TensorInfo* audio = audio_latent(key + ".audio")) {
    keyframe.audio_t = audio->shape[3];
    content_.audio_latents.push_back(audio);
  }
  if (keyframe.latent_t == 0 && keyframe.audio_t == 0)
    reject(key, "needs a tensor {}.latent, {}.audio or both", key, key);
  content_.job.keyframes.push_back(keyframe);
}

void InputsReader::read_reference(const json& entry, std::size_t idx) {
  const std::string where = fmt::format("{}.references[{}]", kDescription, idx);
  refuse_other_fields(entry, where, {"kind"});
  spec::Reference reference;
  reference.kind = reference_kind(entry, where);
  const std::string key = fmt::format("reference.{}", idx);
  if (reference.kind != spec::ReferenceKind::kAudio) read_reference_picture(reference, key + ".latent");
  if (reference.kind != spec::ReferenceKind::kImage) read_reference_sound(reference, key + ".audio");
  content_.job.references.push_back(reference);
}

void InputsReader::read_reference_picture(spec::Reference& reference, const std::string& key) {
  const io::TensorInfo* latent = video_latent(key);
  if (latent == nullptr) reject(key, "the file has no such tensor");
  reference.latent_t = latent->shape[2];
  reference.latent_h = latent->shape[3];
  reference.latent_w = latent->shape[4];
  if (reference.kind == spec::ReferenceKind::kImage && reference.latent_t != 1)
    reject(key, "an image has 1 frame, got {}", reference.latent_t);
  if (reference.latent_h % spec::kPatch != 0 || reference.latent_w % spec::kPatch != 0)
    reject(key, "height and width of a reference must be even, got {}", shape_text(latent->shape));
  content_.visual_latents.push_back(latent);
}

void InputsReader::read_reference_sound(spec::Reference& reference, const std::string& key) {
  const io::TensorInfo* audio = audio_latent(key);
  if (audio == nullptr && reference.kind == spec::ReferenceKind::kAudio)
    reject(key, "the file has no such tensor");
  if (audio == nullptr) return;
  reference.audio_t = audio->shape[3];
  content_.audio_latents.push_back(audio);
}

spec::ReferenceKind InputsReader::reference_kind(const json& entry, const std::string& where) const {
  const json kind = entry.value("kind", json());
  if (kind == "image") return spec::ReferenceKind::kImage;
  if (kind == "audio") return spec::ReferenceKind::kAudio;
  if (kind == "video") return spec::ReferenceKind::kVideo;
  reject(where, "kind must be \"image\", \"audio\" or \"video\", got {}", io::printable(kind.dump()));
}

void InputsReader::read_initial() {
  const io::TensorInfo* video = video_latent("initial.video");
  const io::TensorInfo* audio = audio_latent("initial.audio");
  if ((video == nullptr) != (audio == nullptr))
    reject(video == nullptr ? "initial.video" : "initial.audio", "missing: initial latents come in pairs");
  if (video == nullptr) return;
  check_target_frame(*video);
  if (video->shape[2] != content_.job.latent_t)
    reject(video->name, "expected {} latent frames, got {}", content_.job.latent_t, shape_text(video->shape));
  if (audio->shape[3] != content_.job.audio_t)
    reject(audio->name, "expected {} audio steps, got {}", content_.job.audio_t, shape_text(audio->shape));
}

void InputsReader::refuse_unknown_keys() const {
  for (const io::TensorInfo& info : file_.tensors())
    if (!known_keys_.contains(info.name)) reject(io::printable(info.name), "unknown key");
}

void InputsReader::check_layout() const {
  try {
    spec::Layout layout(content_.job);
  } catch (const Error& error) {
    reject(kDescription, "{}", error.what());
  }
}

const io::TensorInfo* InputsReader::floats(const std::string& key) {
  known_keys_.insert(key);
  const io::TensorInfo* info = file_.find(key);
  if (info == nullptr) return nullptr;
  if (!is_widenable(info->dtype)) reject(key, "expected F32, F16 or BF16, got {}", dtype_name(info->dtype));
  const std::int64_t bad = find_non_finite(file_.data(*info), info->dtype, info->elements());
  if (bad >= 0) reject(key, "NaN or infinity at element {}", bad);
  return info;
}

const io::TensorInfo* InputsReader::video_latent(const std::string& key) {
  const io::TensorInfo* info = floats(key);
  if (info != nullptr) check_latent(*info, "frames, height, width", 5, model_.video_channels);
  return info;
}

const io::TensorInfo* InputsReader::audio_latent(const std::string& key) {
  const io::TensorInfo* info = floats(key);
  if (info == nullptr) return info;
  check_latent(*info, "2, steps", 4, model_.audio_channels);
  if (info->shape[2] != 2) reject(key, "expected 2 stereo channels, got {}", shape_text(info->shape));
  return info;
}

void InputsReader::check_latent(const io::TensorInfo& info, const char* form, std::size_t rank,
                                std::int64_t channels) const {
  const Shape& shape = info.shape;
  if (shape.size() != rank)
    reject(info.name, "expected [1, {}, {}], got {}", channels, form, shape_text(shape));
  if (shape[0] != 1) reject(info.name, "batch must be 1, got {}", shape[0]);
  if (shape[1] != channels) reject(info.name, "expected {} channels, got {}", channels, shape_text(shape));
  if (info.elements() == 0) reject(info.name, "no size may be 0, got {}", shape_text(shape));
}

void InputsReader::check_target_frame(const io::TensorInfo& info) const {
  const spec::JobSpec& job = content_.job;
  if (info.shape[3] != job.latent_h || info.shape[4] != job.latent_w)
    reject(info.name, "expected the target's frame of {} x {} latents, got {}", job.latent_h, job.latent_w,
           shape_text(info.shape));
}

}  // namespace h3s::sample
