#include "exec/weight_loader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/dispatch.h"
#include "checkpoint/quantize_int8.h"
#include "model/block.h"

namespace h3s::exec {

using checkpoint::LinearSource;
using checkpoint::WeightFormat;
using model::LinearWeight;

namespace {

constexpr std::array<const char*, 4> kBlockLinears{"attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"};

template <typename T>
T load_unaligned(const std::byte* data, std::int64_t idx) {
  T value;
  std::memcpy(&value, data + idx * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// dst[i] = convert(src[i]) for a stored floating-point tensor.
template <typename Dst, typename Convert>
void convert_elements(DType dtype, const std::byte* src, std::int64_t count, Dst* dst, Convert convert) {
  dispatch_dtype<float, BF16, F16>(dtype, "load weights", [&]<typename Src>() {
    for (std::int64_t i = 0; i < count; ++i) dst[i] = convert(to_float(load_unaligned<Src>(src, i)));
  });
}

bool aligned(const std::byte* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % dtype_size(dtype) == 0;
}

}  // namespace

// Builds tensors one after another in a slot: measures with null memory, writes otherwise.
class WeightLoader::Builder {
 public:
  Builder(const WeightLoader& loader, SlotMemory slot) : loader_(loader), slot_(slot), carver_(slot.device) {}

  std::int64_t used_bytes() const { return carver_.used_bytes(); }

  // f32 values of a vector, rounded to bf16 where the compute type or the file asks for it.
  const float* vector(const io::TensorInfo& info, bool round_bf16) {
    return floats(info.dtype, data(info), info.elements(), round_bf16);
  }
  const float* norm(const std::string& key) {
    return vector(loader_.checkpoint_.tensor(key), computes_bf16());
  }
  const float* exact(const std::string& key) { return vector(loader_.checkpoint_.tensor(key), false); }

  // A linear layer in the compute type.
  LinearWeight compute_linear(const std::string& layer) {
    const LinearSource source = loader_.checkpoint_.linear(layer);
    LinearWeight weight = geometry(source, computes_bf16());
    if (source.format == WeightFormat::kInt8Tensorwise)
      int8_matrix(source, weight);
    else
      float_matrix(source, weight);
    return weight;
  }

  // An f32 island: stored values, or bf16 ones in a file with quantisation tags.
  LinearWeight island(const std::string& layer) {
    const LinearSource source = loader_.checkpoint_.linear(layer);
    if (source.format == WeightFormat::kInt8Tensorwise) return compute_linear(layer);
    const bool round = loader_.checkpoint_.quantised();
    LinearWeight weight = geometry(source, round);
    weight.dtype = DType::kF32;
    weight.data = source.weight->dtype == DType::kF32 && !round
                      ? matrix_as_stored(*source.weight)
                      : floats(source.weight->dtype, data(*source.weight), source.n * source.k, round);
    return weight;
  }

 private:
  bool computes_bf16() const { return loader_.compute_ == DType::kBF16; }
  const std::byte* data(const io::TensorInfo& info) const { return loader_.checkpoint_.data(info); }

  // The host's address of a piece just carved.
  template <typename T>
  T* host(T* device) const {
    if (device == nullptr) return nullptr;
    const auto offset = reinterpret_cast<std::byte*>(device) - static_cast<std::byte*>(slot_.device);
    return reinterpret_cast<T*>(static_cast<std::byte*>(slot_.host) + offset);
  }

  const float* floats(DType dtype, const std::byte* src, std::int64_t count, bool round_bf16) {
    auto* device = carver_.take<float>(count);
    if (float* dst = host(device))
      convert_elements(dtype, src, count, dst, [=](float v) { return round_bf16 ? round_to<BF16>(v) : v; });
    return device;
  }

  LinearWeight geometry(const LinearSource& source, bool round_bias) {
    LinearWeight weight;
    weight.n = source.n;
    weight.k = source.k;
    if (source.bias != nullptr) weight.bias = vector(*source.bias, round_bias);
    return weight;
  }

  const void* matrix_as_stored(const io::TensorInfo& info) {
    if (loader_.device_is_host_ && aligned(data(info), info.dtype)) return data(info);
    auto* device = carver_.take<std::byte>(static_cast<std::int64_t>(info.bytes()));
    if (std::byte* dst = host(device)) std::memcpy(dst, data(info), info.bytes());
    return device;
  }

  void float_matrix(const LinearSource& source, LinearWeight& weight) {
    const DType stored = source.weight->dtype;
    if (stored == DType::kBF16 || !computes_bf16()) {
      weight.dtype = stored;
      weight.data = matrix_as_stored(*source.weight);
      return;
    }
    auto* device = carver_.take<BF16>(source.n * source.k);
    if (BF16* dst = host(device))
      convert_elements(stored, data(*source.weight), source.n * source.k, dst,
                       [](float v) { return to_bf16(v); });
    weight.dtype = DType::kBF16;
    weight.data = device;
  }

  void int8_matrix(const LinearSource& source, LinearWeight& weight) {
    if (!computes_bf16()) {
      dequantised_matrix(source, weight);
      return;
    }
    weight.dtype = DType::kI8;
    weight.rotate_group = source.rotate_group;
    weight.scale = row_scales(source);
    weight.data = matrix_as_stored(*source.weight);
  }

  // One scale a row, also where the file holds a single one.
  const float* row_scales(const LinearSource& source) {
    auto* device = carver_.take<float>(source.n);
    if (float* dst = host(device))
      for (std::int64_t i = 0; i < source.n; ++i) dst[i] = row_scale(source, i);
    return device;
  }
  float row_scale(const LinearSource& source, std::int64_t row) const {
    return load_unaligned<float>(data(*source.scale), source.scale->elements() == 1 ? 0 : row);
  }

  void dequantised_matrix(const LinearSource& source, LinearWeight& weight) {
    weight.dtype = DType::kF32;
    auto* device = carver_.take<float>(source.n * source.k);
    weight.data = device;
    float* dst = host(device);
    if (dst == nullptr) return;
    const auto k = static_cast<std::size_t>(source.k);
    const auto* codes = reinterpret_cast<const std::int8_t*>(data(*source.weight));
    for (std::int64_t i = 0; i < source.n; ++i, codes += k, dst += k)
      checkpoint::dequantize_int8_row({codes, k}, row_scale(source, i), source.rotate_group,
                                      std::span<float>(dst, k));
  }

  const WeightLoader& loader_;
  SlotMemory slot_;
  model::Carver carver_;
};

WeightLoader::WeightLoader(const checkpoint::Checkpoint& checkpoint, DType compute, bool device_is_host)
    : checkpoint_(checkpoint),
      compute_(compute),
      device_is_host_(device_is_host),
      sizes_(std::make_shared<WeightSizes>(measure())) {}

model::BlockWeights WeightLoader::load_block(const std::string& prefix, bool adaln, SlotMemory slot,
                                             std::int64_t* used) const {
  Builder build(*this, slot);
  model::BlockWeights weights;
  weights.norm1 = build.norm(prefix + ".norm1.weight");
  weights.norm2 = build.norm(prefix + ".norm2.weight");
  weights.q_norm = build.norm(prefix + ".attn.q_norm.weight");
  weights.k_norm = build.norm(prefix + ".attn.k_norm.weight");
  weights.qkv = build.compute_linear(prefix + ".attn.qkv_proj");
  weights.out = build.compute_linear(prefix + ".attn.out_proj");
  weights.fc1 = build.compute_linear(prefix + ".mlp.fc1");
  weights.fc2 = build.compute_linear(prefix + ".mlp.fc2");
  if (adaln) {
    const std::string layer = prefix + ".adaln_proj.linear";
    weights.adaln = checkpoint_.spec().curve() ? build.island(layer) : build.compute_linear(layer);
  }
  *used = build.used_bytes();
  return weights;
}

model::GlobalWeights WeightLoader::load_globals(SlotMemory slot, std::int64_t* used) const {
  Builder build(*this, slot);
  model::GlobalWeights weights;
  const bool curve = checkpoint_.spec().curve();
  weights.video_proj = build.island("video_patch_proj");
  weights.audio_proj = build.island("audio_patch_proj");
  weights.inv_freq = build.exact("rope.inv_freq");
  if (!curve) {
    weights.time_in = build.island("time_embedder.proj_in");
    weights.time_out = build.island("time_embedder.proj_out");
  }
  weights.final_norm = build.norm("final_layer.norm.weight");
  weights.final_adaln = curve ? build.island("final_layer.adaln_proj.linear")
                              : build.compute_linear("final_layer.adaln_proj.linear");
  weights.video_out = build.island("final_layer.video_out");
  weights.audio_out = build.island("final_layer.audio_out");
  *used = build.used_bytes();
  return weights;
}

model::ConditioningWeights WeightLoader::load_conditioning(SlotMemory slot, std::int64_t* used) const {
  Builder build(*this, slot);
  model::ConditioningWeights weights;
  weights.condition_proj = build.compute_linear("condition_proj");
  weights.final_norm = build.norm("token_refiner.final_norm.weight");
  *used = build.used_bytes();
  return weights;
}

WeightSizes WeightLoader::measure() const {
  WeightSizes sizes;
  load_globals({}, &sizes.globals);
  load_conditioning({}, &sizes.conditioning);
  for (std::int64_t i = 0; i < checkpoint_.spec().layers; ++i) {
    const model::BlockWeights block =
        load_block(fmt::format("blocks.{}", i), true, {}, &sizes.blocks.emplace_back());
    sizes.kept_input_row =
        std::max(sizes.kept_input_row, model::kept_input_row_bytes(checkpoint_.spec(), compute_, block.qkv));
    sizes.largest_block = std::max(sizes.largest_block, sizes.blocks.back());
  }
  for (std::int64_t i = 0; i < checkpoint_.spec().refiner_layers; ++i) {
    std::int64_t used = 0;
    load_block(fmt::format("token_refiner.blocks.{}", i), false, {}, &used);
    sizes.largest_refiner_block = std::max(sizes.largest_refiner_block, used);
  }
  return sizes;
}

void WeightLoader::will_need(const std::string& prefix) const {
  for (const char* layer : kBlockLinears) {
    const io::TensorInfo& info = *checkpoint_.linear(prefix + "." + layer).weight;
    checkpoint_.file().will_need(checkpoint_.data(info), info.bytes());
  }
}

void WeightLoader::release_pages(const std::string& prefix) const {
  for (const char* layer : kBlockLinears) {
    const io::TensorInfo& info = *checkpoint_.linear(prefix + "." + layer).weight;
    checkpoint_.file().release_pages(checkpoint_.data(info), info.bytes());
  }
}

}  // namespace h3s::exec
