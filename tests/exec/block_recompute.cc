#include "exec/block_recompute.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "ops/ops.h"

namespace h3s::test {

using kernels::Queue;
using mem::Space;
using model::Carver;

namespace {

constexpr DType kExact = DType::kF32;
constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kChunk = 8192;  // rows projected at a time; at real width some 1 GB of scratch
constexpr std::int64_t kRopeColumns = 2 * kernels::kRopePairs;
constexpr std::int64_t kPositionBytes = kernels::kRopeAxes * static_cast<std::int64_t>(sizeof(double));

void widen(const BF16* src, std::int64_t count, int threads, float* dst) {
  constexpr std::int64_t kLeast = 1 << 18;  // values that are worth a thread
  in_slices(count, kLeast, threads, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) dst[i] = to_float(src[i]);
  });
}

struct ChunkScratch {
  model::ProjectionInputSpace input;
  void* kv;  // [rows, 2 * heads * 128]
  ChunkScratch(Carver& carver, const spec::ModelSpec& spec, std::int64_t rows, std::int64_t heads,
               std::int64_t low_rank_row_bytes)
      : input(model::ProjectionInputSpace::take(carver, spec, kExact, rows, low_rank_row_bytes)),
        kv(carver.take_bytes(rows * 2 * heads * spec.head_dim * kFloat)) {}
};

// `bytes` from the host to the device, or back; done when it returns.
void copy_now(const exec::Context& context, void* dst, const void* src, std::int64_t bytes) {
  context.backend.copy({dst, bytes, src, bytes, bytes, 1}, Queue::kCompute);
  context.backend.sync(context.backend.record(Queue::kCompute));
}

mem::Buffer allocate(const exec::Context& context, Space space, std::int64_t bytes, const char* tag) {
  return context.accountant.allocate(space, bytes, tag);
}

}  // namespace

// The rows asked for, which need not be neighbours, as a chunk of their own.
class BlockRecompute::Rows {
 public:
  Rows(BlockRecompute& block, const std::vector<std::int64_t>& rows, std::size_t num_outputs);

  // O of heads [first, first + heads), whose keys and values are in place, over the first `keys` rows.
  void attend(std::int64_t first, std::int64_t heads, std::int64_t keys, std::size_t output);
  std::vector<float> finish(std::size_t output);

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t x_bytes() const { return count() * spec_.hidden * kFloat; }
  void upload_x();
  void rotate();
  void project();

  BlockRecompute& block_;
  const exec::Context& context_;
  const spec::ModelSpec& spec_;
  const std::vector<std::int64_t>& rows_;
  std::vector<kernels::ModSegment> segments_;  // the sequence's, of these rows
  model::Chunk chunk_;
  mem::Buffer pinned_, device_;
  float *x_ = nullptr, *out_ = nullptr;  // [rows, D]
  void *rotation_ = nullptr, *q_ = nullptr, *qkv_ = nullptr;
  std::vector<float*> o_;  // of each output, [rows, I]
  model::ProjectionInputSpace input_;
  model::MlpScratch mlp_;

  void take(Carver& carver, std::size_t num_outputs) {
    x_ = carver.take<float>(count() * spec_.hidden);
    out_ = carver.take<float>(count() * spec_.hidden);
    rotation_ = carver.take<float>(count() * kRopeColumns);
    q_ = carver.take<float>(count() * spec_.inner());
    qkv_ = carver.take<float>(count() * spec_.inner());
    o_.clear();
    for (std::size_t i = 0; i < num_outputs; ++i) o_.push_back(carver.take<float>(count() * spec_.inner()));
    const std::int64_t low_rank_row_bytes = block_.loader_.sizes().low_rank_row_bytes;
    input_ = model::ProjectionInputSpace::take(carver, spec_, kExact, count(), low_rank_row_bytes);
    mlp_.take(carver, spec_, kExact, count(), low_rank_row_bytes);
  }
};

BlockRecompute::Rows::Rows(BlockRecompute& block, const std::vector<std::int64_t>& rows,
                           std::size_t num_outputs)
    : block_(block), context_(block.context_), spec_(block.spec_), rows_(rows) {
  Carver measure;
  take(measure, num_outputs);
  device_ = allocate(context_, Space::kDevice, measure.used_bytes(), "rows recomputed");
  Carver carver(device_.data());
  take(carver, num_outputs);
  pinned_ =
      allocate(context_, Space::kPinned, std::max(x_bytes(), count() * kPositionBytes), "rows recomputed");

  kernels::Modulation modulation = block_.modulation_;
  for (std::int64_t i = 0; i < count(); ++i) {
    const auto* end = modulation.segments + modulation.num_segments;
    const auto* of = std::find_if(modulation.segments, end, [&](const kernels::ModSegment& segment) {
      return rows_[static_cast<std::size_t>(i)] < segment.stop;
    });
    H3S_ASSERT(of != end);
    segments_.push_back({i, i + 1, of->row});
  }
  modulation.segments = segments_.data();
  modulation.num_segments = count();
  upload_x();
  rotate();
  chunk_ = {.token0 = 0, .rows = count(), .modulate = true, .modulation = modulation, .rope = rotation_};
  project();
}

void BlockRecompute::Rows::upload_x() {
  const std::int64_t d = spec_.hidden;
  for (std::int64_t i = 0; i < count(); ++i)
    widen(block_.input_.x + rows_[static_cast<std::size_t>(i)] * d, d, 1, pinned_.as<float>() + i * d);
  copy_now(context_, x_, pinned_.data(), x_bytes());
}

void BlockRecompute::Rows::rotate() {
  for (std::int64_t i = 0; i < count(); ++i) {
    const std::int64_t row = rows_[static_cast<std::size_t>(i)];
    block_.input_.layout.positions(row, row + 1, pinned_.as<double>() + i * kernels::kRopeAxes);
  }
  const mem::Buffer positions =
      allocate(context_, Space::kDevice, count() * kPositionBytes, "positions of the rows recomputed");
  copy_now(context_, positions.data(), pinned_.data(), count() * kPositionBytes);
  ops::rope_table(context_.backend, {.positions = positions.as<double>(),
                                     .inv_freq = block_.inv_freq_,
                                     .table = rotation_,
                                     .dtype = kExact,
                                     .m = count()});
  context_.backend.sync(context_.backend.record(Queue::kCompute));
}

void BlockRecompute::Rows::project() {
  const model::LinearInput input =
      model::projection_input(context_.backend, spec_, kExact, block_.weights_, chunk_, x_, input_);
  model::project_heads(context_.backend, spec_, kExact, block_.weights_, chunk_, input,
                       {.first = 0, .count = spec_.heads, .q = q_, .q_head_stride = count() * spec_.head_dim},
                       qkv_);
}

void BlockRecompute::Rows::attend(std::int64_t first, std::int64_t heads, std::int64_t keys,
                                  std::size_t output) {
  const std::int64_t d = spec_.head_dim, kv_head_stride = block_.input_.layout.tokens() * d;
  ops::attention(context_.backend, {.q = static_cast<float*>(q_) + first * count() * d,
                                    .k = block_.k_.data(),
                                    .v = block_.v_.data(),
                                    .o = o_[output] + first * d,
                                    .dtype = kExact,
                                    .heads = heads,
                                    .q_tokens = count(),
                                    .kv_tokens = keys,
                                    .q_head_stride = count() * d,
                                    .q_token_stride = d,
                                    .k_head_stride = kv_head_stride,
                                    .k_token_stride = d,
                                    .v_head_stride = kv_head_stride,
                                    .v_token_stride = d,
                                    .o_head_stride = d,
                                    .o_token_stride = spec_.inner(),
                                    .scale = 1.0f / std::sqrt(static_cast<float>(d))});
}

std::vector<float> BlockRecompute::Rows::finish(std::size_t output) {
  copy_now(context_, out_, x_, x_bytes());
  model::attention_out(context_.backend, spec_, kExact, block_.weights_, chunk_, o_[output], out_, mlp_);
  model::mlp(context_.backend, spec_, kExact, block_.weights_, chunk_, out_, mlp_);
  copy_now(context_, pinned_.data(), out_, x_bytes());
  const auto* values = pinned_.as<float>();
  return {values, values + count() * spec_.hidden};
}

// ----------------------------------------------------------------------------------------------------

BlockRecompute::BlockRecompute(kernels::Backend& backend, mem::Accountant& accountant,
                               const BlockInput& input, std::int64_t kv_bytes)
    : context_{backend, accountant},
      input_(input),
      spec_(input.checkpoint.spec()),
      loader_(input.checkpoint, kExact, backend.device_is_host()),
      globals_slot_(context_, loader_.sizes().globals, "weights outside blocks"),
      block_slot_(context_, loader_.sizes().largest_block, "weights of the block"),
      time_(context_, spec_, kExact, loader_.sizes().low_rank_row_bytes),
      group_heads_(std::clamp<std::int64_t>(kv_bytes / (2 * input.layout.tokens() * spec_.head_dim * kFloat),
                                            1, spec_.heads)),
      x_(context_, kChunk * spec_.hidden * kFloat, "x of a chunk"),
      positions_(context_, kChunk * kPositionBytes, "positions of a chunk") {
  const std::int64_t head_bytes = input.layout.tokens() * spec_.head_dim * kFloat;
  k_ = allocate(context_, Space::kDevice, group_heads_ * head_bytes, "k");
  v_ = allocate(context_, Space::kDevice, group_heads_ * head_bytes, "v");
  rotation_ = allocate(context_, Space::kDevice, kChunk * kRopeColumns * kFloat, "rotation of a chunk");
  Carver measure;
  ChunkScratch(measure, spec_, kChunk, group_heads_, loader_.sizes().low_rank_row_bytes);
  scratch_ = allocate(context_, Space::kDevice, measure.used_bytes(), "scratch of a chunk");
  load();
}

void BlockRecompute::load() {
  std::int64_t used = 0;
  const model::GlobalWeights globals = loader_.load_globals(globals_slot_.memory(), &used);
  context_.backend.wait(Queue::kCompute, globals_slot_.upload(used));
  inv_freq_ = globals.inv_freq;
  weights_ = loader_.load_block(fmt::format("blocks.{}", input_.block_idx), /*adaln=*/true,
                                block_slot_.memory(), &used);
  context_.backend.wait(Queue::kCompute, block_slot_.upload(used));

  std::vector<float> curve;  // the full form has none
  if (spec_.curve()) {
    const io::TensorInfo& table = input_.checkpoint.tensor("adaln_t_table");
    curve.resize(static_cast<std::size_t>(table.elements()));
    std::memcpy(curve.data(), input_.checkpoint.data(table), table.bytes());
  }
  time_.embed(globals, curve.data(), input_.timesteps);
  modulation_ = time_.modulation(weights_.adaln);
}

std::vector<std::vector<float>> BlockRecompute::run(const std::vector<std::int64_t>& rows,
                                                    const std::vector<std::int64_t>& key_counts) {
  Rows asked(*this, rows, key_counts.size());
  for (std::int64_t head = 0; head < spec_.heads; head += group_heads_) {
    const std::int64_t heads = std::min(group_heads_, spec_.heads - head);
    project_keys(head, heads);
    for (std::size_t i = 0; i < key_counts.size(); ++i) asked.attend(head, heads, key_counts[i], i);
  }
  std::vector<std::vector<float>> outputs;
  for (std::size_t i = 0; i < key_counts.size(); ++i) outputs.push_back(asked.finish(i));
  return outputs;
}

// k and v of every row for heads [first, first + heads).
void BlockRecompute::project_keys(std::int64_t first, std::int64_t heads) {
  const std::int64_t tokens = input_.layout.tokens(), d = spec_.hidden;
  const int threads = exec::loading_threads(context_.backend.device_is_host());
  for (std::int64_t start = 0; start < tokens; start += kChunk) {
    const std::int64_t rows = std::min(kChunk, tokens - start);
    widen(input_.x + start * d, rows * d, threads, static_cast<float*>(x_.begin()));
    const void* x = x_.commit(rows * d * kFloat);
    const model::Chunk chunk{.token0 = start,
                             .rows = rows,
                             .modulate = true,
                             .modulation = modulation_,
                             .rope = rotation_of(start, rows)};
    Carver carver(scratch_.data());
    const ChunkScratch scratch(carver, spec_, rows, heads, loader_.sizes().low_rank_row_bytes);
    const model::LinearInput input =
        model::projection_input(context_.backend, spec_, kExact, weights_, chunk, x, scratch.input);
    x_.release();
    const std::int64_t row_offset = start * spec_.head_dim;
    model::project_heads(context_.backend, spec_, kExact, weights_, chunk, input,
                         {.first = first,
                          .count = heads,
                          .k = k_.as<float>() + row_offset,
                          .v = v_.as<float>() + row_offset,
                          .kv_head_stride = tokens * spec_.head_dim},
                         scratch.kv);
  }
}

const void* BlockRecompute::rotation_of(std::int64_t start, std::int64_t rows) {
  input_.layout.positions(start, start + rows, static_cast<double*>(positions_.begin()));
  ops::rope_table(context_.backend,
                  {.positions = static_cast<const double*>(positions_.commit(rows * kPositionBytes)),
                   .inv_freq = inv_freq_,
                   .table = rotation_.data(),
                   .dtype = kExact,
                   .m = rows});
  positions_.release();
  return rotation_.data();
}

}  // namespace h3s::test
