#include "checkpoint/generator.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/dispatch.h"
#include "base/error.h"
#include "base/float16.h"
#include "checkpoint/encode.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kStockRotateGroup = 256;

bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> suffixes) {
  for (const std::string_view suffix : suffixes)
    if (text.ends_with(suffix)) return true;
  return false;
}

float uniform(std::uint64_t base, std::uint64_t i) {
  return 2.0f * (static_cast<float>(random_bits24(base, i)) * 0x1p-24f) - 1.0f;  // exact in float
}

}  // namespace

std::uint64_t fnv1a64(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

std::uint32_t random_bits24(std::uint64_t base, std::uint64_t i) {
  std::uint64_t z = base + (i + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  z = z ^ z >> 31;
  return static_cast<std::uint32_t>(z >> 40);
}

TensorGenerator TensorGenerator::weight(std::string_view name, const std::vector<std::int64_t>& shape,
                                        std::uint64_t seed) {
  const std::uint64_t base = fnv1a64(name) ^ seed;
  const double fan_in = shape.empty() ? 1.0 : static_cast<double>(shape.back());
  const auto scaled = [&](double factor) {
    return TensorGenerator(base, Rule::kScaled, static_cast<float>(factor));
  };
  if (ends_with_any(name, {"norm.weight", "norm1.weight", "norm2.weight"})) return {base, Rule::kNorm, 0.1f};
  if (name.ends_with("bias")) return scaled(0.02);
  if (name.ends_with("adaln_proj.linear.weight")) return scaled(0.5 * std::sqrt(3.0 / fan_in));
  if (name.ends_with("adaln_t_table")) return scaled(1.0);
  if (name == "rope.inv_freq") {
    TensorGenerator rope(base, Rule::kRope, 0);
    rope.length_ = shape.at(0);
    return rope;
  }
  return scaled(std::sqrt(3.0 / fan_in));
}

TensorGenerator TensorGenerator::input(std::string_view name, std::uint64_t seed) {
  return {fnv1a64(name) ^ seed, Rule::kInput, static_cast<float>(std::sqrt(3.0))};
}

void TensorGenerator::values(std::int64_t begin, std::int64_t end, float* out) const {
  const auto fill = [&](auto&& value) {
    for (std::int64_t i = begin; i < end; ++i) out[i - begin] = value(static_cast<std::uint64_t>(i));
  };
  switch (rule_) {
    case Rule::kScaled:
      return fill([&](std::uint64_t i) { return uniform(base_, i) * factor_; });
    case Rule::kNorm:
      return fill([&](std::uint64_t i) { return 1.0f + uniform(base_, i) * factor_; });
    case Rule::kInput:
      return fill([&](std::uint64_t i) { return round_to<BF16>(uniform(base_, i) * factor_); });
    case Rule::kRope:
      return fill([&](std::uint64_t i) {
        return static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(length_)));
      });
  }
}

void TensorGenerator::stored(DType dtype, std::int64_t begin, std::int64_t end, std::byte* out) const {
  dispatch_dtype<float, BF16, F16>(dtype, "generator", [&]<typename T>() {
    std::array<float, 1024> block;
    for (std::int64_t at = begin; at < end; at += std::ssize(block)) {
      const std::int64_t count = std::min<std::int64_t>(std::ssize(block), end - at);
      values(at, at + count, block.data());
      std::array<T, block.size()> rounded;
      for (std::size_t i = 0; i < block.size(); ++i) rounded[i] = from_float<T>(block[i]);
      std::memcpy(out + static_cast<std::size_t>(at - begin) * sizeof(T), rounded.data(),
                  static_cast<std::size_t>(count) * sizeof(T));
    }
  });
}

DType stored_dtype(PartKind kind, const spec::ModelSpec& spec) {
  if (kind == PartKind::kIsland || kind == PartKind::kTable) return DType::kF32;
  return kind == PartKind::kAdaln && spec.curve() ? DType::kF32 : DType::kBF16;
}

std::int64_t synthetic_rotate_group(std::int64_t k) {
  std::int64_t group = kStockRotateGroup;
  while (k % group != 0) group /= 4;
  return group > 1 ? group : 0;
}

bool stored_quantised(PartKind kind, WeightFormat format) {
  return format > WeightFormat::kF32 && (kind == PartKind::kQkv || kind == PartKind::kOut ||
                                         kind == PartKind::kFc1 || kind == PartKind::kFc2);
}

namespace {

// Without values: what the format decides.
LayerEncoder encoder_of(const Part& part, WeightFormat format) {
  const std::int64_t n = part.shape[0], k = part.shape[1];
  return LayerEncoder(format, n, k, synthetic_rotate_group(k), 1);
}

}  // namespace

std::vector<io::TensorDecl> checkpoint_tensors(const spec::ModelSpec& spec, WeightFormat format,
                                               const std::string& prefix) {
  if (format == WeightFormat::kF16 || format == WeightFormat::kF32)
    fail(Status::kInvalidArgument, "[synth] format must be bf16 or a quantised one, got {}",
         weight_format_name(format));
  std::vector<io::TensorDecl> tensors;
  for (const Part& part : model_parts(spec)) {
    const std::string name = prefix + part.name;
    if (stored_quantised(part.kind, format)) {
      for (io::TensorDecl& tensor : encoder_of(part, format).tensors(name))
        tensors.push_back(std::move(tensor));
    } else {
      tensors.push_back({prefix + part.key(), stored_dtype(part.kind, spec), part.shape});
    }
    if (part.bias) tensors.push_back({name + ".bias", stored_dtype(part.kind, spec), {part.shape[0]}});
  }
  return tensors;
}

std::map<std::string, QuantTag> checkpoint_tags(const spec::ModelSpec& spec, WeightFormat format,
                                                const std::string& prefix) {
  std::map<std::string, QuantTag> tags;
  for (const Part& part : model_parts(spec)) {
    if (!stored_quantised(part.kind, format)) continue;
    const std::string layer = prefix + part.name, key = layer + kTagSuffix;
    tags.emplace(layer, parse_tag_text(encoder_of(part, format).tag(), key, key));
  }
  return tags;
}

}  // namespace h3s::checkpoint
