#include "exec/sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/ops.h"

namespace h3s::exec {

using model::Carver;

namespace {

constexpr std::int64_t kRopeColumns = 2 * kernels::kRopePairs;
constexpr std::int64_t kPositionBytes = kernels::kRopeAxes * static_cast<std::int64_t>(sizeof(double));

std::int64_t clip(const char* dial, std::int64_t value, std::int64_t most) {
  if (value < 0) fail(Status::kInvalidArgument, "[dials] {} must be 0 (all) or more, got {}", dial, value);
  return value == 0 ? most : std::min(value, most);
}

// fn(start, rows) for consecutive chunks of [0, total).
template <typename Fn>
void for_chunks(std::int64_t total, std::int64_t chunk, Fn fn) {
  for (std::int64_t start = 0; start < total; start += chunk) fn(start, std::min(chunk, total - start));
}

mem::Space home_of_x(Schedule schedule) {
  return schedule == Schedule::kFlat ? mem::Space::kPinned : mem::Space::kDevice;
}

struct QueryScratch {
  void* q;  // [heads][rows][128]
  void* o;  // [rows, I]
  QueryScratch(Carver& carver, const spec::ModelSpec& spec, DType compute, std::int64_t rows)
      : q(carver.take_bytes(rows * spec.inner() * element_bytes(compute))),
        o(carver.take_bytes(rows * spec.inner() * element_bytes(compute))) {}
};

struct ProjectionScratch {
  model::ProjectionInputSpace input;
  void* qkv;  // [rows, parts * heads * 128]
  ProjectionScratch(Carver& carver, const spec::ModelSpec& spec, DType compute, std::int64_t rows,
                    std::int64_t low_rank_row_bytes, std::int64_t heads, std::int64_t parts)
      : input(model::ProjectionInputSpace::take(carver, spec, compute, rows, low_rank_row_bytes)),
        qkv(carver.take_bytes(rows * parts * heads * spec.head_dim * element_bytes(compute))) {}
};

}  // namespace

Dials effective_dials(Dials dials, const spec::ModelSpec& spec, std::int64_t tokens) {
  if (dials.min_tokens < 0)
    fail(Status::kInvalidArgument, "[dials] min_tokens must be 0 or more, got {}", dials.min_tokens);
  dials.head_group = clip("head_group", dials.head_group, spec.heads);
  for (auto [name, chunk] :
       {std::pair{"q_chunk", &dials.q_chunk}, std::pair{"kv_chunk", &dials.kv_chunk},
        std::pair{"mlp_chunk", &dials.mlp_chunk}, std::pair{"head_chunk", &dials.head_chunk}})
    *chunk = clip(name, *chunk, tokens);
  const bool one_group = dials.schedule == Schedule::kResident || dials.head_group == spec.heads;
  if (one_group || dials.schedule != Schedule::kFlat) dials.project_ahead = false;
  if (one_group) dials.keep_projection_input = false;
  if (tokens < dials.min_tokens)
    dials = {.schedule = Schedule::kResident,
             .head_group = spec.heads,
             .q_chunk = tokens,
             .kv_chunk = tokens,
             .mlp_chunk = tokens,
             .head_chunk = tokens,
             .resident_blocks = dials.resident_blocks,
             .weight_slots = dials.weight_slots,
             .min_tokens = dials.min_tokens};
  return dials;
}

Sequence::Sequence(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t tokens,
                   const Dials& dials, const Needs& needs)
    : context_(context),
      spec_(spec),
      compute_(compute),
      tokens_(tokens),
      dials_(effective_dials(dials, spec, tokens)),
      low_rank_row_bytes_(needs.low_rank_row_bytes),
      x_(context, home_of_x(dials_.schedule), tokens, spec.hidden * element_bytes(compute),
         std::max({dials_.kv_chunk, dials_.mlp_chunk, dials_.head_chunk}), "x (residual stream)") {
  const bool grouped = dials_.schedule != Schedule::kResident;
  const std::int64_t heads = grouped ? dials_.head_group : spec.heads;
  const std::int64_t head_bytes = heads * tokens * spec.head_dim * element_bytes(compute);
  auto allocate = [&](const char* tag, std::int64_t bytes) {
    return context_.accountant.allocate(mem::Space::kDevice, bytes, tag);
  };
  if (grouped) q_ = allocate("q of the heads attended", head_bytes);
  if (grouped || needs.input_peaks) {
    const bool on_device =
        !grouped || (dials_.schedule == Schedule::kHeadGroups && dials_.attention_out_on_device);
    // A staging slot holds a query chunk of one group or an MLP chunk of all heads, whichever is larger.
    const std::int64_t query_rows = (dials_.q_chunk * heads + spec.heads - 1) / spec.heads;
    o_.emplace(context, on_device ? mem::Space::kDevice : mem::Space::kPinned, tokens,
               spec.inner() * element_bytes(compute), std::max(query_rows, dials_.mlp_chunk),
               "O (attention output)");
  }
  kv_[0] = {allocate("k of the heads attended", head_bytes), allocate("v of the heads attended", head_bytes)};
  if (dials_.project_ahead)
    kv_[1] = {allocate("k of the heads to come", head_bytes), allocate("v of the heads to come", head_bytes)};
  if (needs.input_peaks)
    peaks_ = allocate("peaks of inputs", static_cast<std::int64_t>(sizeof(model::InputPeaks)));
  scratch_ = allocate("scratch of a chunk", std::max(scratch_bytes(), needs.extra_scratch_bytes));
  if (dials_.keep_projection_input && needs.kept_input_row_bytes > 0)
    kept_.emplace(context, home_of_x(dials_.schedule), tokens, needs.kept_input_row_bytes, dials_.kv_chunk,
                  "input of the projections");
  if (!needs.rotates) return;
  rotation_.emplace(context, home_of_x(dials_.schedule), tokens, kRopeColumns * element_bytes(compute),
                    dials_.kv_chunk, "rotation of the positions");
  positions_.emplace(context, dials_.kv_chunk * kPositionBytes, "position ids of a chunk");
}

std::int64_t Sequence::scratch_bytes() const {
  Carver mlp, project, query;
  model::MlpScratch{}.take(mlp, spec_, compute_, dials_.mlp_chunk, low_rank_row_bytes_);
  if (dials_.schedule != Schedule::kResident) {
    ProjectionScratch(project, spec_, compute_, dials_.kv_chunk, low_rank_row_bytes_, dials_.head_group, 3);
    return std::max(mlp.used_bytes(), project.used_bytes());
  }
  ProjectionScratch(project, spec_, compute_, dials_.kv_chunk, low_rank_row_bytes_, spec_.heads, 2);
  QueryScratch(query, spec_, compute_, dials_.q_chunk);
  Carver query_project = query, query_mlp = query;
  ProjectionScratch(query_project, spec_, compute_, std::min(dials_.kv_chunk, dials_.q_chunk),
                    low_rank_row_bytes_, spec_.heads, 1);
  model::MlpScratch{}.take(query_mlp, spec_, compute_, std::min(dials_.mlp_chunk, dials_.q_chunk),
                           low_rank_row_bytes_);
  return std::max(
      {project.used_bytes(), query_project.used_bytes(), query_mlp.used_bytes(), o_ ? mlp.used_bytes() : 0});
}

void Sequence::run_block(const BlockContext& block) {
  if (dials_.schedule == Schedule::kResident)
    run_resident(block);
  else
    run_grouped(block);
}

// Row `row` of head 0.
void* Sequence::head_row(const mem::Buffer& buffer, std::int64_t row) const {
  return buffer.as<std::byte>() + row * spec_.head_dim * element_bytes(compute_);
}

void Sequence::prepare_rotation(const spec::Layout& layout, const float* inv_freq) {
  for_chunks(tokens_, dials_.kv_chunk, [&](std::int64_t start, std::int64_t rows) {
    layout.positions(start, start + rows, static_cast<double*>(positions_->begin()));
    const auto* positions = static_cast<const double*>(positions_->commit(rows * kPositionBytes));
    auto* table = static_cast<std::byte*>(rotation_->write(start, rows));
    context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
      ops::rope_table(context_.backend, {.positions = positions + first * kernels::kRopeAxes,
                                         .inv_freq = inv_freq,
                                         .table = table + first * rotation_->row_bytes(),
                                         .dtype = compute_,
                                         .m = count});
    });
    rotation_->done_dirty();
    positions_->release();
  });
  rotation_->begin_phase();
}

void Sequence::project(const BlockContext& block, std::int64_t start, std::int64_t rows, Input from,
                       const model::HeadTargets& targets, Carver carver) {
  block.let_weights_arrive();
  const std::int64_t parts = (targets.q != nullptr) + (targets.k != nullptr) + (targets.v != nullptr);
  const ProjectionScratch scratch(carver, spec_, compute_, rows, low_rank_row_bytes_, targets.count, parts);
  const model::LinearWeight& qkv = block.weights.qkv;
  model::Chunk chunk = chunk_of(block, start, rows);
  if (rotation_) chunk.rope = rotation_->read(start, rows);
  model::ProjectionInputSpace space = scratch.input;
  if (from == Input::kMakeAndKeep)
    space = model::kept_input_space(spec_, qkv, rows, kept_->write(start, rows), scratch.input);
  if (from == Input::kKept) {
    space = model::kept_input_space(spec_, qkv, rows, kept_->read(start, rows), {});
  } else {
    const auto* x = static_cast<const std::byte*>(x_.read(start, rows));
    context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
      model::projection_input(context_.backend, spec_, compute_, block.weights,
                              chunk.piece(first, count, compute_), x + first * x_.row_bytes(),
                              space.from_row(first, spec_, compute_, qkv));
    });
    x_.done();
  }
  context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
    const model::ProjectionInputSpace made = space.from_row(first, spec_, compute_, qkv);
    model::project_heads(context_.backend, spec_, compute_, block.weights,
                         chunk.piece(first, count, compute_),
                         {made.h, compute_, spec_.hidden, count, made.quant},
                         targets.from_row(first, spec_.head_dim, compute_), scratch.qkv);
  });
  if (rotation_) rotation_->done();
  if (from == Input::kMakeAndKeep) kept_->done_dirty();
  if (from == Input::kKept) kept_->done();
}

void Sequence::attend(std::int64_t heads, const void* q, std::int64_t q_head_stride, const KeyValues& kv,
                      std::int64_t rows, void* o, std::int64_t o_token_stride) {
  const std::int64_t d = spec_.head_dim;
  context_.in_pieces(Stage::kAttend, rows, [&](std::int64_t first, std::int64_t count) {
    ops::attention(context_.backend,
                   {.q = static_cast<const std::byte*>(q) + first * d * element_bytes(compute_),
                    .k = kv.k.data(),
                    .v = kv.v.data(),
                    .o = static_cast<std::byte*>(o) + first * o_token_stride * element_bytes(compute_),
                    .dtype = compute_,
                    .heads = heads,
                    .q_tokens = count,
                    .kv_tokens = tokens_,
                    .q_head_stride = q_head_stride,
                    .q_token_stride = d,
                    .k_head_stride = tokens_ * d,
                    .k_token_stride = d,
                    .v_head_stride = tokens_ * d,
                    .v_token_stride = d,
                    .o_head_stride = d,
                    .o_token_stride = o_token_stride,
                    .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)))});
  });
}

void Sequence::run_resident(const BlockContext& block) {
  block.phases.enter(Phase::kKv);
  measure_qkv_inputs(block);
  for_chunks(tokens_, dials_.kv_chunk, [&](std::int64_t start, std::int64_t rows) {
    const model::HeadTargets targets{.first = 0,
                                     .count = spec_.heads,
                                     .k = head_row(kv_[0].k, start),
                                     .v = head_row(kv_[0].v, start),
                                     .kv_head_stride = tokens_ * spec_.head_dim};
    project(block, start, rows, Input::kMake, targets, Carver(scratch_.data()));
  });
  for_chunks(tokens_, dials_.q_chunk,
             [&](std::int64_t start, std::int64_t rows) { resident_queries(block, start, rows); });
  if (o_) finish_all(block);
}

// Queries [start, start + rows): only their own rows of x are read and written, so x may change in place
// while the chunks after them still wait.
void Sequence::resident_queries(const BlockContext& block, std::int64_t start, std::int64_t rows) {
  Carver carver(scratch_.data());
  const QueryScratch query(carver, spec_, compute_, rows);
  const std::int64_t q_row_bytes = spec_.head_dim * element_bytes(compute_);
  const std::int64_t o_row_bytes = spec_.inner() * element_bytes(compute_);
  block.phases.enter(Phase::kKv);
  for_chunks(rows, dials_.kv_chunk, [&](std::int64_t first, std::int64_t count) {
    const model::HeadTargets targets{.first = 0,
                                     .count = spec_.heads,
                                     .q = static_cast<std::byte*>(query.q) + first * q_row_bytes,
                                     .q_head_stride = rows * spec_.head_dim};
    project(block, start + first, count, Input::kMake, targets, carver);
  });
  block.phases.enter(Phase::kAttn);
  if (o_) {
    void* o = o_->write(start, rows);
    attend(spec_.heads, query.q, rows * spec_.head_dim, kv_[0], rows, o, spec_.inner());
    measure_attended(block, start, rows, {.count = spec_.heads}, o, spec_.inner());
    return o_->done_dirty();
  }
  attend(spec_.heads, query.q, rows * spec_.head_dim, kv_[0], rows, query.o, spec_.inner());
  block.phases.enter(Phase::kMlp);
  for_chunks(rows, dials_.mlp_chunk, [&](std::int64_t first, std::int64_t count) {
    finish_rows(block, start + first, count, static_cast<std::byte*>(query.o) + first * o_row_bytes, carver);
  });
}

Sequence::HeadGroup Sequence::group_at(std::int64_t first_head) const {
  const std::int64_t group_idx = first_head / dials_.head_group;
  return {first_head, std::min(dials_.head_group, spec_.heads - first_head),
          &kv_[dials_.project_ahead ? group_idx % 2 : 0]};
}

void Sequence::run_grouped(const BlockContext& block) {
  x_.begin_phase();
  measure_qkv_inputs(block);
  for_chunks(tokens_, dials_.q_chunk,
             [&](std::int64_t start, std::int64_t rows) { project_group(block, group_at(0), start, rows); });
  if (kept_) kept_->begin_phase();
  for (std::int64_t head = 0; head < spec_.heads; head += dials_.head_group) attend_group(block, head);
  finish_all(block);
}

// work(piece, its rows of x): ops that may be done again until the last of them has been started.
template <typename Work>
void Sequence::in_mlp_pieces(const model::Chunk& chunk, void* x, Work work) {
  context_.in_pieces(Stage::kMlp, chunk.rows, [&](std::int64_t first, std::int64_t count) {
    work(chunk.piece(first, count, compute_), static_cast<std::byte*>(x) + first * x_.row_bytes());
  });
}

void Sequence::finish_attention(const BlockContext& block, const model::Chunk& chunk, const void* o, void* x,
                                const model::MlpScratch& scratch) {
  const std::int64_t o_row_bytes = spec_.inner() * element_bytes(compute_);
  in_mlp_pieces(chunk, x, [&](const model::Chunk& piece, void* rows) {
    const auto* attended = static_cast<const std::byte*>(o) + (piece.token0 - chunk.token0) * o_row_bytes;
    model::attention_out(context_.backend, spec_, compute_, block.weights, piece, attended, rows, scratch);
  });
}

void Sequence::finish_mlp(const BlockContext& block, const model::Chunk& chunk, void* x,
                          const model::MlpScratch& scratch) {
  in_mlp_pieces(chunk, x, [&](const model::Chunk& piece, void* rows) {
    model::mlp(context_.backend, spec_, compute_, block.weights, piece, rows, scratch);
  });
}

void Sequence::finish_all(const BlockContext& block) {
  block.phases.enter(Phase::kMlp);
  o_->begin_phase();
  if (block.weights.needs_peaks()) return finish_all_with_peaks(block);
  for_chunks(tokens_, dials_.mlp_chunk, [&](std::int64_t start, std::int64_t rows) {
    finish_rows(block, start, rows, o_->read(start, rows), Carver(scratch_.data()));
    o_->done();
  });
}

// A peak is complete when the pass that measures it is.
void Sequence::finish_all_with_peaks(const BlockContext& block) {
  const auto pass = [&](auto work) {
    x_.begin_phase();
    for_chunks(tokens_, dials_.mlp_chunk, [&](std::int64_t start, std::int64_t rows) {
      Carver carver(scratch_.data());
      model::MlpScratch scratch;
      scratch.take(carver, spec_, compute_, rows, low_rank_row_bytes_);
      work(chunk_of(block, start, rows), x_.read(start, rows), scratch);
    });
  };
  kernels::Backend& backend = context_.backend;
  pass([&](const model::Chunk& chunk, void* x, const model::MlpScratch& scratch) {
    finish_attention(block, chunk, o_->read(chunk.token0, chunk.rows), x, scratch);
    o_->done();
    in_mlp_pieces(chunk, x, [&](const model::Chunk& piece, void* rows) {
      model::measure_fc1_input(backend, spec_, compute_, block.weights, piece, rows, scratch);
    });
    x_.done_dirty();
  });
  if (block.weights.fc2.needs_peak())
    pass([&](const model::Chunk& chunk, void* x, const model::MlpScratch& scratch) {
      in_mlp_pieces(chunk, x, [&](const model::Chunk& piece, const void* rows) {
        model::measure_fc2_input(backend, spec_, compute_, block.weights, piece, rows, scratch);
      });
      x_.done();
    });
  pass([&](const model::Chunk& chunk, void* x, const model::MlpScratch& scratch) {
    finish_mlp(block, chunk, x, scratch);
    x_.done_dirty();
  });
}

void Sequence::measure_qkv_inputs(const BlockContext& block) {
  if (!block.weights.qkv.needs_peak()) return;
  block.phases.enter(Phase::kKv);
  for_chunks(tokens_, dials_.kv_chunk, [&](std::int64_t start, std::int64_t rows) {
    Carver carver(scratch_.data());
    const auto space = model::ProjectionInputSpace::take(carver, spec_, compute_, rows, low_rank_row_bytes_);
    const model::Chunk chunk = chunk_of(block, start, rows);
    const auto* x = static_cast<const std::byte*>(x_.read(start, rows));
    context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
      model::measure_qkv_input(context_.backend, spec_, compute_, block.weights,
                               chunk.piece(first, count, compute_), x + first * x_.row_bytes(), space);
    });
    x_.done();
  });
}

// o: the columns of the group's heads in rows [start, start + rows), `stride` elements apart.
void Sequence::measure_attended(const BlockContext& block, std::int64_t start, std::int64_t rows,
                                const HeadGroup& group, const void* o, std::int64_t stride) {
  model::LinearWeight columns = block.weights.out;
  if (!columns.needs_peak()) return;
  columns.k = group.count * spec_.head_dim;
  if (columns.pre_scale != nullptr) columns.pre_scale += group.first * spec_.head_dim;
  context_.in_pieces(Stage::kAttend, rows, [&](std::int64_t first, std::int64_t count) {
    model::measure_input(context_.backend, columns,
                         static_cast<const std::byte*>(o) + first * stride * element_bytes(compute_),
                         compute_, stride, count, start + first == 0 && group.first == 0,
                         &peaks_.as<model::InputPeaks>()->out);
  });
}

// All queries of the group at `head`; then, or chunk by chunk in between, the next group is projected. Chunks
// of the projection lie within those of the queries throughout, because kept rows are laid out chunk by
// chunk.
void Sequence::attend_group(const BlockContext& block, std::int64_t head) {
  const HeadGroup group = group_at(head);
  const bool has_next = head + group.count < spec_.heads;
  const auto project_next = [&](std::int64_t start, std::int64_t rows) {
    if (has_next) project_group(block, group_at(head + group.count), start, rows);
  };
  for_chunks(tokens_, dials_.q_chunk, [&](std::int64_t start, std::int64_t rows) {
    block.phases.enter(Phase::kAttn);
    attend_queries(block, group, start, rows);
    if (dials_.project_ahead) project_next(start, rows);
  });
  if (!dials_.project_ahead) for_chunks(tokens_, dials_.q_chunk, project_next);
}

// q, k and v of the group for rows [start, start + rows).
void Sequence::project_group(const BlockContext& block, const HeadGroup& group, std::int64_t start,
                             std::int64_t rows) {
  block.phases.enter(Phase::kKv);
  for_chunks(rows, dials_.kv_chunk, [&](std::int64_t first, std::int64_t count) {
    const std::int64_t token0 = start + first;
    const std::int64_t head_stride = tokens_ * spec_.head_dim;
    const model::HeadTargets targets{.first = group.first,
                                     .count = group.count,
                                     .q = head_row(q_, token0),
                                     .k = head_row(group.kv->k, token0),
                                     .v = head_row(group.kv->v, token0),
                                     .q_head_stride = head_stride,
                                     .kv_head_stride = head_stride};
    const Input from = !kept_ ? Input::kMake : group.first == 0 ? Input::kMakeAndKeep : Input::kKept;
    project(block, token0, count, from, targets, Carver(scratch_.data()));
  });
}

void Sequence::attend_queries(const BlockContext& block, const HeadGroup& group, std::int64_t start,
                              std::int64_t rows) {
  block.let_weights_arrive();
  const std::int64_t head_bytes = spec_.head_dim * element_bytes(compute_);
  const RowStore::Window o =
      o_->write_columns(start, rows, group.first * head_bytes, group.count * head_bytes);
  const std::int64_t stride = o.pitch_bytes / element_bytes(compute_);
  attend(group.count, head_row(q_, start), tokens_ * spec_.head_dim, *group.kv, rows, o.data, stride);
  measure_attended(block, start, rows, group, o.data, stride);
  o_->done_dirty();
}

model::Chunk Sequence::chunk_of(const BlockContext& block, std::int64_t start, std::int64_t rows) const {
  return {.token0 = start,
          .rows = rows,
          .modulate = block.modulation.table != nullptr,
          .modulation = block.modulation,
          .peaks = peaks_.as<model::InputPeaks>()};
}

void Sequence::finish_rows(const BlockContext& block, std::int64_t start, std::int64_t rows, const void* o,
                           Carver carver) {
  block.let_weights_arrive();
  model::MlpScratch scratch;
  scratch.take(carver, spec_, compute_, rows, low_rank_row_bytes_);
  const model::Chunk chunk = chunk_of(block, start, rows);
  auto* x = static_cast<std::byte*>(x_.read(start, rows));
  finish_attention(block, chunk, o, x, scratch);
  finish_mlp(block, chunk, x, scratch);
  x_.done_dirty();
}

}  // namespace h3s::exec
