#include "sample/condition.h"

#include "sample/randn.h"

namespace h3s::sample {
namespace {

mem::Buffer allocate_floats(mem::Accountant& accountant, std::int64_t count, const char* tag) {
  if (count == 0) return {};
  return accountant.allocate(mem::Space::kHost, count * static_cast<std::int64_t>(sizeof(float)), tag);
}

void add_noise(float* rows, std::int64_t count, double aug, std::uint64_t seed, mem::Accountant& accountant) {
  if (aug >= 1.0) return;
  const mem::Buffer noise = allocate_floats(accountant, count, "condition noise");
  const auto* n = noise.as<float>();
  TorchGenerator(seed).randn(noise.as<float>(), count);
  const auto keep = static_cast<float>(aug), rest = static_cast<float>(1.0 - aug);
  for (std::int64_t i = 0; i < count; ++i) rows[i] = keep * rows[i] + rest * n[i];
}

std::int64_t total_elements(const std::vector<spec::VideoShape>& shapes) {
  std::int64_t sum = 0;
  for (const spec::VideoShape& shape : shapes) sum += shape.rows() * shape.columns();
  return sum;
}

spec::VideoShape video_shape(const io::TensorInfo& info) {
  return {info.shape[1], info.shape[2], info.shape[3], info.shape[4]};
}

mem::Buffer visual_rows(const Inputs& inputs, const ConditionOptions& options, mem::Accountant& accountant) {
  std::vector<spec::VideoShape> shapes;
  for (const io::TensorInfo* info : inputs.visual_latents()) shapes.push_back(video_shape(*info));
  mem::Buffer out = allocate_floats(accountant, total_elements(shapes), "visual condition rows");
  auto* rows = out.as<float>();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const mem::Buffer latent = inputs.load(*inputs.visual_latents()[i], accountant, "condition latent");
    const std::int64_t count = shapes[i].rows() * shapes[i].columns();
    spec::patchify_rows(latent.as<float>(), shapes[i], 0, shapes[i].rows(), rows);
    add_noise(rows, count, options.visual_aug, options.seed, accountant);
    rows += count;
  }
  return out;
}

mem::Buffer audio_rows(const Inputs& inputs, const ConditionOptions& options, mem::Accountant& accountant) {
  std::int64_t total = 0;
  for (const io::TensorInfo* info : inputs.audio_latents()) total += info->elements();
  mem::Buffer out = allocate_floats(accountant, total, "audio condition rows");
  auto* rows = out.as<float>();
  for (const io::TensorInfo* info : inputs.audio_latents()) {
    const mem::Buffer latent = inputs.load(*info, accountant, "condition latent");
    const spec::AudioShape shape{info->shape[1], info->shape[3]};
    spec::pack_audio_rows(latent.as<float>(), shape, 0, shape.rows(), rows);
    add_noise(rows, shape.elements(), options.audio_aug, options.seed + 1, accountant);
    rows += shape.elements();
  }
  return out;
}

}  // namespace

ConditionRows make_condition_rows(const Inputs& inputs, const ConditionOptions& options,
                                  mem::Accountant& accountant) {
  return {visual_rows(inputs, options, accountant), audio_rows(inputs, options, accountant)};
}

}  // namespace h3s::sample
