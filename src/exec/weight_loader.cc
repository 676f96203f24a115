#include "exec/weight_loader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/dispatch.h"
#include "base/parallel.h"
#include "checkpoint/formats.h"
#include "checkpoint/merge.h"
#include "model/block.h"

namespace h3s::exec {

using checkpoint::Activation;
using checkpoint::LinearSource;
using checkpoint::MergedLayer;
using checkpoint::StoredLayer;
using checkpoint::WeightFormat;
using model::LinearWeight;

namespace {

constexpr std::array<const char*, 4> kBlockLinears{"attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"};

// Ranks are padded with zeros to what the tensor cores and tile copies of every backend take.
constexpr std::int64_t kRankMultiple = 16;

// Less is not worth a thread.
constexpr std::int64_t kLeastCopyBytes = 4 << 20, kLeastDecodedElements = 1 << 18;

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

// Copying from a file's pages is bound by page faults, decoding by arithmetic.
int loading_threads(bool device_is_host) {
  if (device_is_host) return 1;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) - 1, 1, 8);
}

void load_bytes(const std::byte* src, std::int64_t bytes, int threads, std::byte* dst) {
  in_slices(bytes, kLeastCopyBytes, threads, [=](std::int64_t begin, std::int64_t end) {
    std::memcpy(dst + begin, src + begin, static_cast<std::size_t>(end - begin));
  });
}

int merging_threads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, checkpoint::kMostMergeThreads);
}

// Merging takes every processor and all of the memory for it: one layer at a time.
struct WeightLoader::Merging {
  std::mutex mutex;
  checkpoint::MergeWorkspace workspace;
};

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
    LinearWeight weight = geometry(layer, source, computes_bf16());
    if (merges(layer))
      merged_matrix(layer, source, loader_.compute_, weight);
    else if (source.plain())
      float_matrix(source, weight);
    else if (!computes_bf16() || source.activation == Activation::kNone)
      dequantised_matrix(source, weight);
    else
      quantised_matrix(source, weight);
    low_rank(layer, loader_.compute_, weight);
    return weight;
  }

  // An f32 island: stored values, or bf16 ones in a file with quantisation tags.
  LinearWeight island(const std::string& layer) {
    const LinearSource source = loader_.checkpoint_.linear(layer);
    if (!source.plain()) return compute_linear(layer);
    const bool round = loader_.checkpoint_.quantised();
    LinearWeight weight = geometry(layer, source, round);
    weight.dtype = DType::kF32;
    if (merges(layer)) {
      const DType held = round ? DType::kBF16 : DType::kF32;
      weight.data =
          merged<float>(layer, source, [=](const MergedLayer& rows, float* out) { rows.plain(held, out); });
      return weight;
    }
    weight.data = source.weight->dtype == DType::kF32 && !round
                      ? matrix_as_stored(*source.weight)
                      : floats(source.weight->dtype, data(*source.weight), source.n * source.k, round);
    low_rank(layer, DType::kF32, weight);
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

  LinearWeight geometry(const std::string& layer, const LinearSource& source, bool round_bias) {
    LinearWeight weight;
    weight.n = source.n;
    weight.k = source.k;
    if (source.bias != nullptr) weight.bias = bias(layer, *source.bias, round_bias);
    return weight;
  }

  // With its differences, added in the type that it is held in.
  const float* bias(const std::string& layer, const io::TensorInfo& info, bool round_bf16) {
    const float* device = vector(info, round_bf16);
    const checkpoint::LoraLayer* lora = loader_.checkpoint_.lora(layer);
    if (lora == nullptr || device == nullptr) return device;
    const std::span<float> values(host(const_cast<float*>(device)),
                                  static_cast<std::size_t>(info.elements()));
    lora->add_to_bias(values);
    if (round_bf16)
      for (float& v : values) v = round_to<BF16>(v);
    return device;
  }

  // The pairs of a layer's LoRAs as one, where they are not merged into its weight.
  void low_rank(const std::string& layer, DType dtype, LinearWeight& weight) {
    const checkpoint::LoraLayer* lora = loader_.checkpoint_.lora(layer);
    if (lora == nullptr || lora->pairs.empty() || merges(layer)) return;
    const std::int64_t rank = round_up(lora->rank(), kRankMultiple);
    weight.low_rank = {.dtype = dtype, .rank = rank};
    dispatch_dtype<float, BF16>(dtype, "LoRA", [&]<typename T>() {
      weight.low_rank.a = made_rows<T>(
          rank, weight.k, [lora](std::int64_t row, std::span<float> out) { lora->down_row(row, out); });
      weight.low_rank.b = made_rows<T>(
          weight.n, rank, [lora](std::int64_t row, std::span<float> out) { lora->up_row(row, out); });
    });
  }

  // [rows, columns] of T, each value of make(row, floats) rounded once.
  template <typename T, typename Make>
  T* made_rows(std::int64_t rows, std::int64_t columns, Make make) {
    T* device = carver_.take<T>(rows * columns);
    if (T* dst = host(device))
      in_slices(rows, kLeastDecodedElements / columns + 1, loader_.threads_,
                [&](std::int64_t begin, std::int64_t end) {
                  std::vector<float> row(static_cast<std::size_t>(columns));
                  for (std::int64_t i = begin; i < end; ++i) {
                    make(i, std::span<float>(row));
                    std::transform(row.begin(), row.end(), dst + i * columns,
                                   [](float v) { return from_float<T>(v); });
                  }
                });
    return device;
  }

  const void* matrix_as_stored(const io::TensorInfo& info) {
    if (loader_.device_is_host_ && aligned(data(info), info.dtype)) return data(info);
    auto* device = carver_.take<std::byte>(static_cast<std::int64_t>(info.bytes()));
    if (std::byte* dst = host(device))
      load_bytes(data(info), static_cast<std::int64_t>(info.bytes()), loader_.threads_, dst);
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

  void quantised_matrix(const LinearSource& source, LinearWeight& weight) {
    if (source.int8_product())
      int8_matrix(source, weight);
    else
      coded_float_matrix(source, weight);
  }

  // What int8 operands of a format have in common, whatever their codes.
  static void set_int8(const LinearSource& source, LinearWeight& weight) {
    weight.dtype = DType::kI8;
    weight.rotate_group = source.rotate_group;
    if (source.activation == Activation::kInt4) weight.row_code = kernels::RowCode::kInt4;
    // Stock fuses it for this format alone.
    weight.fused_swiglu = source.format == WeightFormat::kInt8Tensorwise;
  }

  void int8_matrix(const LinearSource& source, LinearWeight& weight) {
    set_int8(source, weight);
    weight.scale = row_scales(source);
    weight.data = source.format == WeightFormat::kInt8Tensorwise
                      ? matrix_as_stored(*source.weight)
                      : decoded<std::int8_t>(source, rows_of(source).codes);
  }

  static kernels::FloatCode float_code(Activation activation) {
    switch (activation) {
      case Activation::kE4M3:
        return kernels::FloatCode::kE4M3;
      case Activation::kE5M2:
        return kernels::FloatCode::kE5M2;
      case Activation::kMxfp8:
        return kernels::FloatCode::kMxfp8;
      default:
        return kernels::FloatCode::kNvfp4;
    }
  }

  void set_coded_float(const LinearSource& source, LinearWeight& weight) {
    weight.dtype = DType::kBF16;
    weight.float_code = float_code(source.activation);
    weight.input_scale = source.activation == Activation::kMxfp8 ? 1.0f : source.input_scale;
    weight.tensor_scale = source.tensor_scale;
    if (source.pre_scale != nullptr) weight.pre_scale = vector(*source.pre_scale, true);
  }

  void coded_float_matrix(const LinearSource& source, LinearWeight& weight) {
    set_coded_float(source, weight);
    weight.data = decoded<BF16>(source, rows_of(source).values);
  }

  bool merges(const std::string& layer) const {
    const checkpoint::LoraLayer* lora = loader_.checkpoint_.lora(layer);
    return lora != nullptr && !lora->pairs.empty() &&
           loader_.checkpoint_.loras()->mode() == checkpoint::LoraMode::kMerge;
  }

  // float_matrix, quantised_matrix and dequantised_matrix of a layer whose LoRAs are merged into its weight.
  void merged_matrix(const std::string& layer, const LinearSource& source, DType compute,
                     LinearWeight& weight) {
    weight.dtype = compute;
    if (!source.plain() && computes_bf16() && source.activation != Activation::kNone)
      return merged_operand(layer, source, weight);
    dispatch_dtype<float, BF16>(compute, "merge", [&]<typename T>() {
      weight.data = merged<T>(layer, source, [&](const MergedLayer& rows, T* out) {
        if (source.plain())
          rows.plain(compute, out);
        else
          rows.dequantize(out);
      });
    });
  }

  // The operand of a quantised product.
  void merged_operand(const std::string& layer, const LinearSource& source, LinearWeight& weight) {
    if (!source.int8_product()) {
      set_coded_float(source, weight);
      weight.data = merged<BF16>(
          layer, source, [&](const MergedLayer& rows, BF16* out) { weight.tensor_scale = rows.values(out); });
      return;
    }
    set_int8(source, weight);
    auto* scale = carver_.take<float>(source.n);
    weight.scale = scale;
    weight.data = merged<std::int8_t>(
        layer, source, [&](const MergedLayer& rows, std::int8_t* out) { rows.codes(out, host(scale)); });
  }

  // [n, k] of T, which write(layer, memory) fills.
  template <typename T, typename Write>
  T* merged(const std::string& layer, const LinearSource& source, Write write) {
    T* device = carver_.take<T>(source.n * source.k);
    if (T* dst = host(device)) {
      H3S_ASSERT(loader_.merging_ != nullptr);
      const std::lock_guard lock(loader_.merging_->mutex);
      write(MergedLayer(loader_.checkpoint_, layer, loader_.merging_->workspace), dst);
    }
    return device;
  }

  static const checkpoint::RowCodec& rows_of(const LinearSource& source) {
    return checkpoint::format_row(source.format).rows;
  }

  // [n, k] of T, row by row.
  template <typename T, typename DecodeRow>
  T* decoded(const LinearSource& source, DecodeRow decode) {
    T* device = carver_.take<T>(source.n * source.k);
    if (T* dst = host(device)) {
      const StoredLayer stored(loader_.checkpoint_.file(), source);
      in_slices(source.n, kLeastDecodedElements / source.k + 1, loader_.threads_,
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t i = begin; i < end; ++i) decode(stored, i, dst + i * source.k);
                });
    }
    return device;
  }

  // One scale a row, also where the file holds a single one.
  const float* row_scales(const LinearSource& source) {
    auto* device = carver_.take<float>(source.n);
    if (float* dst = host(device)) {
      const StoredLayer stored(loader_.checkpoint_.file(), source);
      for (std::int64_t i = 0; i < source.n; ++i) dst[i] = stored.row_scale(i);
    }
    return device;
  }

  // The weight itself in the compute type; factors of the input's columns become the weight's.
  void dequantised_matrix(const LinearSource& source, LinearWeight& weight) {
    weight.dtype = loader_.compute_;
    const auto dequantize = rows_of(source).dequantize;
    if (!computes_bf16()) {
      const std::vector<float> factors = pre_scales(source);
      weight.data = decoded<float>(source, [&](const StoredLayer& stored, std::int64_t row, float* out) {
        dequantize(stored, row, DType::kF32, out);
        for (std::size_t i = 0; i < factors.size(); ++i) out[i] *= factors[i];
      });
      return;
    }
    weight.data = made_rows<BF16>(source.n, source.k, [&](std::int64_t row, std::span<float> out) {
      dequantize(StoredLayer(loader_.checkpoint_.file(), source), row, DType::kBF16, out.data());
    });
  }

  std::vector<float> pre_scales(const LinearSource& source) const {
    if (source.pre_scale == nullptr) return {};
    std::vector<float> factors(static_cast<std::size_t>(source.k));
    convert_elements(source.pre_scale->dtype, data(*source.pre_scale), source.k, factors.data(),
                     [](float v) { return v; });
    return factors;
  }

  const WeightLoader& loader_;
  SlotMemory slot_;
  model::Carver carver_;
};

WeightLoader::WeightLoader(const checkpoint::Checkpoint& checkpoint, DType compute, bool device_is_host)
    : checkpoint_(checkpoint),
      compute_(compute),
      device_is_host_(device_is_host),
      threads_(loading_threads(device_is_host)),
      sizes_(std::make_shared<WeightSizes>(measure())) {}

WeightLoader WeightLoader::with_merge_memory(void* memory) const {
  WeightLoader loader = *this;
  if (memory == nullptr || sizes_->merge_bytes == 0) return loader;
  loader.merging_ = std::make_shared<Merging>();
  loader.merging_->workspace = {static_cast<std::byte*>(memory), checkpoint_.loras()->merge_part_bytes(),
                                merging_threads()};
  return loader;
}

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
  if (const checkpoint::LoraSet* loras = checkpoint_.loras())
    sizes.merge_bytes = checkpoint::kMostMergeThreads * loras->merge_part_bytes();
  const auto see_low_rank = [&](const auto&... weights) {
    sizes.low_rank_row_bytes = std::max({sizes.low_rank_row_bytes, weights.low_rank.row_bytes()...});
  };
  const model::GlobalWeights globals = load_globals({}, &sizes.globals);
  see_low_rank(globals.video_proj, globals.audio_proj, globals.time_in, globals.time_out, globals.final_adaln,
               globals.video_out, globals.audio_out);
  const LinearWeight text = load_conditioning({}, &sizes.conditioning).condition_proj;
  sizes.text_needs_peak = text.needs_peak();
  see_low_rank(text);
  for (std::int64_t i = 0; i < checkpoint_.spec().layers; ++i) {
    const model::BlockWeights block =
        load_block(fmt::format("blocks.{}", i), true, {}, &sizes.blocks.emplace_back());
    sizes.kept_input_row =
        std::max(sizes.kept_input_row, model::kept_input_row_bytes(checkpoint_.spec(), compute_, block.qkv));
    sizes.largest_block = std::max(sizes.largest_block, sizes.blocks.back());
    see_low_rank(block.qkv, block.out, block.fc1, block.fc2, block.adaln);
    sizes.blocks_need_peaks |= block.needs_peaks();
  }
  for (std::int64_t i = 0; i < checkpoint_.spec().refiner_layers; ++i) {
    std::int64_t used = 0;
    const model::BlockWeights block = load_block(fmt::format("token_refiner.blocks.{}", i), false, {}, &used);
    sizes.blocks_need_peaks |= block.needs_peaks();
    see_low_rank(block.qkv, block.out, block.fc1, block.fc2);
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
