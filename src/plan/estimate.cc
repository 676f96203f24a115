#include "plan/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "checkpoint/parts.h"
#include "exec/weight_ring.h"

namespace h3s::plan {

using exec::Dials;
using exec::Schedule;

namespace {

constexpr double kHeadDim = 128;
constexpr double kRanksPerOctave = 128;
// Patching, rounding and unpacking latents on the host read and write each value some times over.
constexpr double kHostPasses = 6;
// Of the shorter of compute and copies: two slots stall where the two take turns being late, and both use the
// device's memory. Runs of bench/results/budgets-h200.json.
constexpr double kNotOverlapped = 0.2;

// Dequantising and quantising again, as a multiple of the time int8 takes (bench/results/merge-cpu.json).
double merge_factor(checkpoint::WeightFormat format) {
  using checkpoint::WeightFormat;
  switch (format) {
    case WeightFormat::kFloat8E4M3:
    case WeightFormat::kFloat8E5M2:
    case WeightFormat::kMxfp8:
      return 4;
    case WeightFormat::kConvrotW4A4:
      return 6;
    case WeightFormat::kNvfp4:
      return 7;
    case WeightFormat::kAsymW4A8:
      return 8;
    default:  // int8, plain
      return 1;
  }
}

double calls_of(double rows, double chunk) {
  return std::ceil(rows / chunk);
}

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

const char* stage_name(std::size_t stage) {
  constexpr std::array<const char*, kNumStages> kNames{"embed",         "project q, k, v",    "attention",
                                                       "out_proj, MLP", "weights not hidden", "output heads"};
  return kNames[stage];
}

double Estimate::waiting() const {
  double waits = 0;
  for (const Stage& stage : stages) waits += stage.seconds - stage.compute;
  return waits;
}

std::int64_t time_rank(double seconds) {
  return static_cast<std::int64_t>(std::ceil(std::log2(seconds) * kRanksPerOctave));
}

TimeModel::TimeModel(const Calibration& calibration, const exec::WeightLoader& loader,
                     const spec::Layout& layout, bool device_is_host, bool weights_cached)
    : rates_(calibration),
      loader_(loader),
      spec_(loader.checkpoint().spec()),
      layout_(layout),
      device_is_host_(device_is_host),
      weight_rate_(weights_cached || rates_.file_bytes == 0
                       ? rates_.loading_bytes
                       : std::min(rates_.loading_bytes, rates_.file_bytes)),
      merging_(merging()),
      tokens_(as_double(layout.tokens())),
      element_(as_double(static_cast<std::int64_t>(dtype_size(loader.compute())))),
      qkv_(layer("attn.qkv_proj")),
      out_(layer("attn.out_proj")),
      fc1_(layer("mlp.fc1")),
      fc2_(layer("mlp.fc2")) {}

TimeModel::Layer TimeModel::layer(const char* name) const {
  Layer result;
  double int8 = 0, fused = 0, low_rank = 0;
  const checkpoint::LoraSet* loras = loader_.checkpoint().loras();
  const bool beside = loras != nullptr && loras->mode() == checkpoint::LoraMode::kRuntime;
  for (std::int64_t i = 0; i < spec_.layers; ++i) {
    const checkpoint::LinearSource source = loader_.checkpoint().linear(fmt::format("blocks.{}.{}", i, name));
    result.n = source.n;
    result.k = source.k;
    if (const auto* lora = beside ? loras->find(fmt::format("blocks.{}.{}", i, name)) : nullptr)
      low_rank += as_double(lora->rank());
    // Computing in f32, codes are dequantised: the products are floating-point ones.
    const bool codes = source.int8_product() && loader_.compute() == DType::kBF16;
    int8 += codes;
    fused += codes && source.format == checkpoint::WeightFormat::kInt8Tensorwise;
  }
  result.int8_share = int8 / as_double(spec_.layers);
  result.fused_share = fused / as_double(spec_.layers);
  result.low_rank = low_rank / as_double(spec_.layers);
  return result;
}

TimeModel::Merging TimeModel::merging() const {
  Merging merging;
  const checkpoint::Checkpoint& checkpoint = loader_.checkpoint();
  if (checkpoint.loras() == nullptr || checkpoint.loras()->mode() != checkpoint::LoraMode::kMerge) return {};
  for (const checkpoint::Part& part : checkpoint::model_parts(spec_)) {
    const checkpoint::LoraLayer* lora = is_linear(part.kind) ? checkpoint.lora(part.name) : nullptr;
    if (lora == nullptr || lora->pairs.empty()) continue;
    const checkpoint::LinearSource source = checkpoint.linear(part.name);
    double seconds = merge_factor(source.format) * as_double(source.n * source.k) / rates_.merge.weights;
    for (const checkpoint::LoraPair& pair : lora->pairs)
      seconds += 2 * as_double(pair.target.rows * source.k * pair.rank) / rates_.merge.ops;
    (part.name.starts_with("blocks.") ? merging.blocks : merging.once) += seconds;
  }
  return merging;
}

const LinearRate& TimeModel::float_rate() const {
  return loader_.compute() == DType::kBF16 ? rates_.bf16 : rates_.f32;
}

// `n` outputs of the layer, `rows` rows in `calls` calls.
double TimeModel::linear(const Layer& layer, double rows, double calls, double n) const {
  const auto seconds = [&](const LinearRate& rate) {
    return 2 * as_double(layer.k) * ((rows + calls * rate.extra_rows) * n + calls * rate.extra_outputs) /
           rate.ops;
  };
  return layer.int8_share * seconds(rates_.int8) + (1 - layer.int8_share) * seconds(float_rate()) +
         low_rank(layer, rows, calls, n);
}

// Two thin products, and y read and written once more, which takes longer than the second of them.
double TimeModel::low_rank(const Layer& layer, double rows_count, double calls, double n) const {
  if (layer.low_rank == 0) return 0;
  return 2 * rows_count * layer.low_rank * (as_double(layer.k) + n) / float_rate().ops +
         rows(rows_count * (2 * n + as_double(layer.k)) * element_, 2 * calls);
}

// Activations of `width` values a row into codes, where the layer wants them.
double TimeModel::quantize(const Layer& layer, double rows, double calls, double width) const {
  const double bytes = rows * (width + as_double(layer.k));
  return layer.int8_share * (bytes / rates_.quantize_bytes + calls * rates_.call_seconds);
}

double TimeModel::rows(double bytes, double calls) const {
  return bytes / rates_.row_bytes + calls * rates_.call_seconds;
}

double TimeModel::island(double rows, double calls, std::int64_t n, std::int64_t k) const {
  const LinearRate& rate = rates_.f32;
  return 2 * as_double(k) * ((rows + calls * rate.extra_rows) * as_double(n) + calls * rate.extra_outputs) /
         rate.ops;
}

// norm1 and modulation, and codes where the layer wants them.
double TimeModel::projection_input(double rows_count, double chunk) const {
  const double calls = calls_of(rows_count, chunk), d = as_double(spec_.hidden) * element_;
  return rows(rows_count * 2 * d, calls) + quantize(qkv_, rows_count, calls, d);
}

// `parts` of q, k, v for `heads` heads, from their input, which every call packs again: a processor's time,
// and nothing to a device that reads it beside the products.
double TimeModel::project(double rows_count, double chunk, double heads, double parts) const {
  const double calls = calls_of(rows_count, chunk), width = heads * kHeadDim;
  const double packing =
      rates_.overlaps ? 0 : rows_count * as_double(loader_.sizes().kept_input_row) / rates_.row_bytes;
  return packing + linear(qkv_, rows_count, calls, parts * width) +
         rows(rows_count * 2 * parts * width * element_, calls);
}

double TimeModel::attend(const Dials& dials) const {
  const bool grouped = dials.schedule != Schedule::kResident;
  const AttentionRate& rate =
      loader_.compute() == DType::kBF16 ? rates_.attention_bf16 : rates_.attention_f32;
  const double heads = as_double(spec_.heads);
  const double groups = grouped ? calls_of(heads, as_double(dials.head_group)) : 1;
  const double calls = groups * calls_of(tokens_, as_double(dials.q_chunk));
  return 4 * kHeadDim * tokens_ * std::max(tokens_ * heads, calls * rate.min_rows) / rate.ops;
}

// out_proj, gated residual, norm2, fc1, SwiGLU, fc2, gated residual.
double TimeModel::finish(double rows_count, double chunk) const {
  const double calls = calls_of(rows_count, chunk);
  const double d = as_double(spec_.hidden) * element_, f = as_double(spec_.ffn) * element_;
  return quantize(out_, rows_count, calls, as_double(spec_.inner()) * element_) +
         linear(out_, rows_count, calls, as_double(out_.n)) + rows(rows_count * 8 * d, 3 * calls) +
         quantize(fc1_, rows_count, calls, d) + linear(fc1_, rows_count, calls, as_double(fc1_.n)) +
         quantize(fc2_, rows_count, calls, (1 + fc2_.fused_share) * f) +
         (1 - fc2_.fused_share) * rows(rows_count * 3 * f, calls) +
         linear(fc2_, rows_count, calls, as_double(fc2_.n));
}

double TimeModel::overlapped(double compute, Copies copies, double not_hidden) const {
  if (!rates_.overlaps) return compute + copies.up + copies.down;
  std::array<double, 3> times{compute, copies.up, copies.down};
  std::sort(times.begin(), times.end());
  return times[2] + kNotOverlapped * times[1] + not_hidden;
}

void TimeModel::set(Stage& stage, double compute, Copies copies, double not_hidden) const {
  stage = {compute, copies.up, copies.down, overlapped(compute, copies, not_hidden)};
}

void TimeModel::resident_stages(const Dials& dials, Estimate& estimate) const {
  const double layers = as_double(spec_.layers), heads = as_double(spec_.heads);
  const double q = as_double(dials.q_chunk), kv = as_double(dials.kv_chunk), mlp = as_double(dials.mlp_chunk);
  const double q_kv = std::min(q, kv);
  const double keys = projection_input(tokens_, kv) + project(tokens_, kv, heads, 2);
  const double queries = projection_input(tokens_, q_kv) + project(tokens_, q_kv, heads, 1);
  set(estimate.stages[kProject], layers * (keys + queries), {}, 0);
  set(estimate.stages[kAttend], layers * attend(dials), {}, 0);
  set(estimate.stages[kFinish], layers * finish(tokens_, std::min(q, mlp)), {}, 0);
}

// The first group is projected by itself, the later ones by themselves or between the queries of the one
// before. With flat x comes in for each, or what the first group kept of it.
void TimeModel::grouped_stages(const Dials& dials, Estimate& estimate) const {
  const double layers = as_double(spec_.layers), mlp = as_double(dials.mlp_chunk);
  const double q = as_double(dials.q_chunk), kv = std::min(q, as_double(dials.kv_chunk));
  const double d = as_double(spec_.hidden) * element_, inner = as_double(spec_.inner()) * element_;
  const double group = as_double(dials.head_group), groups = calls_of(as_double(spec_.heads), group);
  const double heads = as_double(spec_.heads) / groups;
  const bool flat = dials.schedule == Schedule::kFlat, keep = dials.keep_projection_input;
  const bool o_on_host = flat || !dials.attention_out_on_device;
  const double x_row = flat ? d : 0, kept_row = flat && keep ? as_double(loader_.sizes().kept_input_row) : 0;
  const double later_row = keep ? kept_row : x_row, o_row = o_on_host ? inner : 0;

  const double input = projection_input(tokens_, kv), products = project(tokens_, kv, heads, 3);
  const double later = (groups - 1) * (products + (keep ? 0 : input));
  const double rotation_row = flat ? 2 * kernels::kRopePairs * element_ : 0;  // with every projection
  const Copies first_copies{upload(tokens_ * (x_row + rotation_row)), download(tokens_ * kept_row)};
  const Copies later_copies{upload((groups - 1) * tokens_ * (later_row + rotation_row)), 0};
  const double o_copies = o_on_host ? download(tokens_ * (inner + groups * rates_.copy_row_bytes)) : 0;
  const double last_o = download(o_on_host ? q * group * kHeadDim * element_ : 0);

  Stage& projecting = estimate.stages[kProject];
  Stage& attending = estimate.stages[kAttend];
  set(projecting, input + products, first_copies, upload(kv * x_row));
  if (dials.project_ahead) {
    set(attending, attend(dials) + later, {later_copies.up, o_copies}, last_o);
  } else {
    projecting.compute += later;
    projecting.upload += later_copies.up;
    projecting.seconds += overlapped(later, later_copies, 0);
    set(attending, attend(dials), {0, o_copies}, last_o);
  }
  set(estimate.stages[kFinish], finish(tokens_, mlp),
      {upload(tokens_ * (o_row + x_row)), download(tokens_ * x_row)},
      upload(mlp * (o_row + x_row)) + download(mlp * x_row));
  for (const StageIdx i : {kProject, kAttend, kFinish}) {
    Stage& stage = estimate.stages[i];
    stage = {layers * stage.compute, layers * stage.upload, layers * stage.download, layers * stage.seconds};
  }
  estimate.host_traffic_bytes +=
      layers * tokens_ *
      (3 * x_row + kept_row + (groups - 1) * later_row + groups * rotation_row + 2 * o_row);
}

void TimeModel::embed_and_heads(const Dials& dials, Estimate& estimate) const {
  const bool flat = dials.schedule == Schedule::kFlat;
  const double d = as_double(spec_.hidden) * element_, patch = as_double(spec_.patch_width()) * 4;
  const double x_copy = flat ? tokens_ * d : 0;
  const double host = kHostPasses * tokens_ * patch / rates_.host_bytes;
  const double embed_calls = calls_of(tokens_, as_double(dials.kv_chunk));
  const double head_calls = calls_of(tokens_, as_double(dials.head_chunk));
  const double embed = island(tokens_, embed_calls, spec_.hidden, spec_.patch_width());
  const double heads = island(tokens_, head_calls, spec_.patch_width(), spec_.hidden) +
                       rows(tokens_ * (d + as_double(spec_.hidden) * 4), head_calls);
  set(estimate.stages[kEmbed], embed, {upload(tokens_ * patch), download(x_copy)}, 0);
  set(estimate.stages[kHeads], heads, {upload(x_copy), download(tokens_ * patch)}, 0);
  // The host fills one chunk while the device projects another, and unpacks each after it has come back.
  Stage& embed_stage = estimate.stages[kEmbed];
  embed_stage.seconds = rates_.overlaps ? std::max(embed_stage.seconds, host) : embed_stage.seconds + host;
  estimate.stages[kHeads].seconds += host;
  estimate.host_traffic_bytes += 2 * (tokens_ * patch + x_copy);
}

// Streaming runs beside the blocks' compute: the host copies into pinned memory, the upload queue brings it
// in beside what else it has to do. With one slot the upload waits for the block before.
void TimeModel::weights(const Dials& dials, Estimate& estimate) const {
  const exec::WeightSizes& sizes = loader_.sizes();
  const exec::WeightPlacement placement(dials, spec_.layers, device_is_host_);
  double all = 0;
  for (const std::int64_t bytes : sizes.blocks) all += as_double(bytes);
  const double layers = as_double(spec_.layers);
  const double streamed = all * as_double(placement.streamed_blocks(spec_.layers)) / layers;
  const double kept = all * as_double(placement.resident_blocks) / layers;
  Stage& stage = estimate.stages[kWeights];
  const double merged = merging_.blocks / layers;  // seconds a block
  const double host = streamed / weight_rate_ + merged * as_double(placement.streamed_blocks(spec_.layers));
  const double resident = kept / weight_rate_ + merged * as_double(placement.resident_blocks);
  const double once = as_double(sizes.globals + sizes.conditioning) +
                      as_double(spec_.refiner_layers * sizes.largest_refiner_block);
  estimate.setup_seconds = once / weight_rate_ + merging_.once;
  if (device_is_host_) {
    estimate.setup_seconds += resident;
    stage.seconds = stage.compute = host;
    return;
  }
  double blocks = 0, uploads = 0;
  for (const StageIdx i : {kProject, kAttend, kFinish}) {
    blocks += estimate.stages[i].seconds;
    uploads += estimate.stages[i].upload;
  }
  estimate.setup_seconds += std::max(0.0, resident - blocks);  // in the first step, as if streamed
  stage.upload = upload(streamed);
  if (placement.slots == 1) blocks += stage.upload;
  const double busiest = std::max({blocks, host, uploads + stage.upload});
  stage.seconds = busiest - blocks + (placement.slots == 1 ? stage.upload : 0);
  estimate.host_traffic_bytes += streamed;
}

Estimate TimeModel::estimate(const Dials& dials) const {
  Estimate estimate;
  if (dials.schedule == Schedule::kResident)
    resident_stages(dials, estimate);
  else
    grouped_stages(dials, estimate);
  embed_and_heads(dials, estimate);
  weights(dials, estimate);
  for (const Stage& stage : estimate.stages) estimate.seconds += stage.seconds;
  return estimate;
}

}  // namespace h3s::plan
