#include "reference/reference_model.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/float16.h"
#include "checkpoint/generator.h"

namespace h3s::reference {
namespace {

double bf(double v) {
  return to_float(to_bf16(static_cast<float>(v)));
}

// Normalised Hadamard matrix of a group, entry (i, j): the product over base-4 digits of H4.
double hadamard(std::int64_t i, std::int64_t j, std::int64_t group) {
  constexpr int kH4[4][4] = {{1, 1, 1, -1}, {1, 1, -1, 1}, {1, -1, 1, 1}, {-1, 1, 1, 1}};
  double sign = 1;
  for (std::int64_t g = group; g > 1; g /= 4, i /= 4, j /= 4) sign *= kH4[i % 4][j % 4];
  return sign / std::sqrt(static_cast<double>(group));
}

// Portable int8: rotated values rounded to bf16, one scale a row, quotient rounded to bf16 before the code.
struct QuantisedRow {
  std::vector<double> codes;
  float scale = 0;
};

std::vector<double> rotate(const double* row, std::int64_t k, std::int64_t group) {
  std::vector<double> rotated(static_cast<std::size_t>(k));
  for (std::int64_t c = 0; c < k; ++c) {
    double sum = 0;
    const std::int64_t base = c / group * group;
    for (std::int64_t i = 0; i < group; ++i) sum += row[base + i] * hadamard(i, c - base, group);
    rotated[static_cast<std::size_t>(c)] = bf(sum);
  }
  return rotated;
}

QuantisedRow quantise(const double* row, std::int64_t k, std::int64_t group) {
  const std::vector<double> rotated = rotate(row, k, group);
  double largest = 0;
  for (const double v : rotated) largest = std::max(largest, std::abs(v));
  QuantisedRow out;
  out.scale = std::max(static_cast<float>(largest) / 127.0f, 1e-30f);
  const float divisor = static_cast<float>(bf(out.scale));
  for (const double v : rotated)
    out.codes.push_back(std::clamp(std::nearbyint(bf(static_cast<float>(v) / divisor)), -128.0, 127.0));
  return out;
}

double silu(double z) {
  return z / (1 + std::exp(-z));
}

}  // namespace

Matrix transposed_product(const Matrix& x, const Matrix& w) {
  Matrix y(x.rows, w.rows);
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t n = 0; n < w.rows; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < x.cols; ++k) sum += x.row(r)[k] * w.row(n)[k];
      y.row(r)[n] = sum;
    }
  return y;
}

Model::Model(const spec::ModelSpec& spec, std::uint64_t seed, Numerics numerics, bool int8)
    : spec_(spec), seed_(seed), numerics_(numerics), int8_(int8) {}

Model::Model(const spec::ModelSpec& spec, std::uint64_t seed, Numerics numerics, BlockLinear linear)
    : spec_(spec), seed_(seed), numerics_(numerics), int8_(true), block_linear_(std::move(linear)) {}

Matrix rotated_rows(const Matrix& x) {
  Matrix out(x.rows, x.cols);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const auto row = rotate(x.row(r), x.cols, checkpoint::synthetic_rotate_group(x.cols));
    std::copy(row.begin(), row.end(), out.row(r));
  }
  return out;
}

RotatedRows portable_int8_rows(const Matrix& x) {
  RotatedRows out{Matrix(x.rows, x.cols), {}};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const QuantisedRow row = quantise(x.row(r), x.cols, checkpoint::synthetic_rotate_group(x.cols));
    std::copy(row.codes.begin(), row.codes.end(), out.codes.row(r));
    out.scales.push_back(row.scale);
  }
  return out;
}

double Model::round(double v) const {
  return numerics_ == Numerics::kPortable ? bf(v) : v;
}

std::vector<double> Model::vector(const std::string& key, std::int64_t n) const {
  std::vector<float> values(static_cast<std::size_t>(n));
  checkpoint::TensorGenerator::weight(key, {n}, seed_).values(0, n, values.data());
  return {values.begin(), values.end()};
}

Matrix Model::weight(const std::string& layer, std::int64_t n, std::int64_t k) const {
  std::vector<float> values(static_cast<std::size_t>(n * k));
  checkpoint::TensorGenerator::weight(layer + ".weight", {n, k}, seed_).values(0, n * k, values.data());
  Matrix w(n, k);
  std::copy(values.begin(), values.end(), w.values.begin());
  return w;
}

// Islands are stored in f32 and stay so unless the file is quantised; everything else is stored in bf16.
Matrix Model::linear(const Matrix& x, const std::string& layer, std::int64_t n, bool bias, bool island,
                     bool rounded) const {
  Matrix w = weight(layer, n, x.cols);
  std::vector<double> b =
      bias ? vector(layer + ".bias", n) : std::vector<double>(static_cast<std::size_t>(n));
  if (!island || int8_) {
    for (double& v : w.values) v = bf(v);
    for (double& v : b) v = bf(v);
  }
  Matrix y = transposed_product(x, w);
  for (std::int64_t r = 0; r < y.rows; ++r)
    for (std::int64_t c = 0; c < n; ++c) {
      const double v = y.row(r)[c] + b[static_cast<std::size_t>(c)];
      y.row(r)[c] = rounded ? round(v) : v;
    }
  return y;
}

Matrix Model::int8_linear(const Matrix& x, const std::string& layer, std::int64_t n) const {
  const std::int64_t k = x.cols, group = checkpoint::synthetic_rotate_group(k);
  Matrix w = weight(layer, n, k);
  std::vector<QuantisedRow> rows, activations;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t c = 0; c < k; ++c) w.row(i)[c] = bf(w.row(i)[c]);
    rows.push_back(quantise(w.row(i), k, group));
  }
  Matrix y(x.rows, n);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const QuantisedRow a = quantise(x.row(r), k, group);
    for (std::int64_t i = 0; i < n; ++i) {
      const QuantisedRow& b = rows[static_cast<std::size_t>(i)];
      double sum = 0;
      for (std::size_t c = 0; c < a.codes.size(); ++c) sum += a.codes[c] * b.codes[c];
      y.row(r)[i] = bf(static_cast<float>(sum) * (a.scale * b.scale));
    }
  }
  return y;
}

Matrix Model::block_linear(const Matrix& x, const std::string& layer, std::int64_t n) const {
  if (block_linear_ && layer.starts_with("blocks.")) return block_linear_(x, layer, n);
  return int8_ && layer.starts_with("blocks.") ? int8_linear(x, layer, n) : linear(x, layer, n, false, false);
}

Matrix Model::norm(const Matrix& x, const std::string& key) const {
  const std::vector<double> w = vector(key, x.cols);
  Matrix y(x.rows, x.cols);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) sum += x.row(r)[c] * x.row(r)[c];
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.cols) + 1e-5);
    // Stock's products are float32 ones: a value on the other side of a bf16 tie flips 4-bit codes.
    for (std::int64_t c = 0; c < x.cols; ++c)
      y.row(r)[c] = numerics_ == Numerics::kPortable
                        ? bf(static_cast<float>(x.row(r)[c]) * static_cast<float>(scale) *
                             static_cast<float>(bf(w[static_cast<std::size_t>(c)])))
                        : x.row(r)[c] * scale * bf(w[static_cast<std::size_t>(c)]);
  }
  return y;
}

void Model::head_norm_and_rope(double* head, const std::vector<double>& w, const double* position) const {
  constexpr std::int64_t kPairs = 48, kFrequencies = 16;
  double sum = 0;
  for (std::int64_t i = 0; i < spec_.head_dim; ++i) sum += head[i] * head[i];
  const double scale = 1 / std::sqrt(sum / static_cast<double>(spec_.head_dim) + 1e-5);
  for (std::int64_t i = 0; i < spec_.head_dim; ++i)
    head[i] = round(head[i] * scale * bf(w[static_cast<std::size_t>(i)]));
  if (position == nullptr) return;
  for (std::int64_t i = 0; i < kPairs; ++i) {
    const auto frequency = static_cast<float>(
        std::pow(10000.0, -static_cast<double>(i % kFrequencies) / static_cast<double>(kFrequencies)));
    const double angle = static_cast<float>(position[i / kFrequencies]) * frequency;
    const double c = round(static_cast<float>(std::cos(angle))),
                 s = round(static_cast<float>(std::sin(angle)));
    const double a = head[i], b = head[i + kPairs];
    head[i] = round(round(c * a) - round(s * b));
    head[i + kPairs] = round(round(s * a) + round(c * b));
  }
}

// Unfused: scores, probabilities after the division and the sum each rounded.
Matrix Model::attention(const std::string& prefix, const Matrix& h, const spec::Layout* layout) const {
  const std::int64_t d = spec_.head_dim, inner = spec_.inner(), tokens = h.rows;
  Matrix qkv = block_linear(h, prefix + ".attn.qkv_proj", 3 * inner);
  std::vector<double> positions(static_cast<std::size_t>(3 * tokens));
  if (layout != nullptr) layout->positions(0, tokens, positions.data());
  const std::vector<double> qw = vector(prefix + ".attn.q_norm.weight", d);
  const std::vector<double> kw = vector(prefix + ".attn.k_norm.weight", d);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t head = 0; head < spec_.heads; ++head) {
      const double* position = layout == nullptr ? nullptr : positions.data() + 3 * t;
      head_norm_and_rope(qkv.row(t) + head * d, qw, position);
      head_norm_and_rope(qkv.row(t) + inner + head * d, kw, position);
    }
  Matrix out(tokens, inner);
  std::vector<double> p(static_cast<std::size_t>(tokens));
  for (std::int64_t head = 0; head < spec_.heads; ++head)
    for (std::int64_t t = 0; t < tokens; ++t) {
      double largest = -INFINITY, total = 0;
      for (std::int64_t j = 0; j < tokens; ++j) {
        double dot = 0;
        for (std::int64_t i = 0; i < d; ++i)
          dot += qkv.row(t)[head * d + i] * qkv.row(j)[inner + head * d + i];
        p[static_cast<std::size_t>(j)] = round(dot / std::sqrt(static_cast<double>(d)));
        largest = std::max(largest, p[static_cast<std::size_t>(j)]);
      }
      for (double& v : p) total += v = std::exp(v - largest);
      for (double& v : p) v = round(v / total);
      for (std::int64_t i = 0; i < d; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < tokens; ++j)
          sum += p[static_cast<std::size_t>(j)] * qkv.row(j)[2 * inner + head * d + i];
        out.row(t)[head * d + i] = round(sum);
      }
    }
  return block_linear(out, prefix + ".attn.out_proj", spec_.hidden);
}

Matrix Model::mlp(const std::string& prefix, const Matrix& h, bool) const {
  const std::int64_t f = spec_.ffn;
  const Matrix u = block_linear(h, prefix + ".mlp.fc1", 2 * f);
  Matrix m(h.rows, f);
  for (std::int64_t r = 0; r < h.rows; ++r)
    for (std::int64_t c = 0; c < f; ++c) m.row(r)[c] = round(round(silu(u.row(r)[c])) * u.row(r)[f + c]);
  return block_linear(m, prefix + ".mlp.fc2", spec_.hidden);
}

Matrix Model::refine(const Matrix& text) const {
  Matrix x = linear(text, "condition_proj", spec_.hidden, true, false);
  for (std::int64_t i = 0; i < spec_.refiner_layers; ++i) {
    const std::string prefix = fmt::format("token_refiner.blocks.{}", i);
    const Matrix a = attention(prefix, norm(x, prefix + ".norm1.weight"), nullptr);
    for (std::size_t j = 0; j < x.values.size(); ++j) x.values[j] = round(x.values[j] + a.values[j]);
    const Matrix m = mlp(prefix, norm(x, prefix + ".norm2.weight"), false);
    for (std::size_t j = 0; j < x.values.size(); ++j) x.values[j] = round(x.values[j] + m.values[j]);
  }
  return norm(x, "token_refiner.final_norm.weight");
}

Matrix Model::embed_video(const Matrix& rows) const {
  return linear(rows, "video_patch_proj", spec_.hidden, true, true);
}
Matrix Model::embed_audio(const Matrix& rows) const {
  return linear(rows, "audio_patch_proj", spec_.hidden, true, true);
}

Matrix Model::time_embedding(const std::vector<double>& timesteps) const {
  const auto count = static_cast<std::int64_t>(timesteps.size());
  if (spec_.curve()) {
    Matrix table(spec_.curve_grid, spec_.time_dim);
    std::vector<float> values(table.values.size());
    checkpoint::TensorGenerator::weight("adaln_t_table", {table.rows, table.cols}, seed_)
        .values(0, table.rows * table.cols, values.data());
    Matrix rows(count, spec_.time_dim);
    for (std::int64_t t = 0; t < count; ++t) {
      const float p = std::clamp(static_cast<float>(timesteps[static_cast<std::size_t>(t)]), 0.0f, 1.0f) *
                      static_cast<float>(spec_.curve_grid - 1);
      const std::int64_t i = std::min(static_cast<std::int64_t>(p), spec_.curve_grid - 2);
      const float w = p - static_cast<float>(i);
      for (std::int64_t c = 0; c < spec_.time_dim; ++c) {
        const float a = values[static_cast<std::size_t>(i * spec_.time_dim + c)];
        const float b = values[static_cast<std::size_t>((i + 1) * spec_.time_dim + c)];
        const float d = b - a;
        rows.row(t)[c] = w < 0.5f ? std::fma(w, d, a) : std::fma(-(1 - w), d, b);
      }
    }
    return rows;
  }
  Matrix sinusoid(count, spec_.timestep_dim);
  const std::int64_t n = spec_.timestep_dim / 2;
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t i = 0; i < n; ++i) {
      const double argument = static_cast<float>(timesteps[static_cast<std::size_t>(t)]) *
                              std::exp(-std::log(10000.0) * static_cast<double>(i) / static_cast<double>(n));
      sinusoid.row(t)[i] = std::cos(argument);
      sinusoid.row(t)[n + i] = std::sin(argument);
    }
  Matrix hidden = linear(sinusoid, "time_embedder.proj_in", spec_.time_hidden, true, true, false);
  for (double& v : hidden.values) v = silu(v);
  return linear(hidden, "time_embedder.proj_out", spec_.time_dim, true, true);
}

Matrix Model::silu_rows(const Matrix& t_emb) const {
  Matrix rows = t_emb;
  if (!spec_.curve())
    for (double& v : rows.values) v = round(silu(v));
  return rows;
}

// The six parts of a modulation row, rounded to the compute type; scales as 1 + scale.
struct Model::Modulation {
  Matrix rows;  // [3 x timesteps, 6D]
};

Matrix Model::block(std::int64_t idx, const Matrix& x, const Matrix& t_emb, const spec::Layout& layout,
                    const std::vector<kernels::ModSegment>& segments) const {
  const std::string prefix = fmt::format("blocks.{}", idx);
  const std::int64_t d = spec_.hidden;
  const Matrix projected =
      linear(silu_rows(t_emb), prefix + ".adaln_proj.linear", 18 * d, true, spec_.curve(), !spec_.curve());
  // Part `part` of the modulation row of token t, for channel c.
  const auto part = [&](std::int64_t t, std::int64_t p, std::int64_t c) {
    for (const kernels::ModSegment& s : segments)
      if (t >= s.start && t < s.stop)
        return round(projected.values[static_cast<std::size_t>((s.row * 6 + p) * d + c)]);
    throw std::logic_error("token without a segment");
  };
  const auto modulate = [&](Matrix h, std::int64_t shift, std::int64_t scale) {
    for (std::int64_t t = 0; t < h.rows; ++t)
      for (std::int64_t c = 0; c < d; ++c)
        h.row(t)[c] = round(round(h.row(t)[c] * round(1 + part(t, scale, c))) + part(t, shift, c));
    return h;
  };
  const auto add = [&](Matrix sum, const Matrix& o, std::int64_t gate) {
    for (std::int64_t t = 0; t < sum.rows; ++t)
      for (std::int64_t c = 0; c < d; ++c)
        sum.row(t)[c] = round(sum.row(t)[c] + o.row(t)[c] * part(t, gate, c));
    return sum;
  };
  const Matrix attended = attention(prefix, modulate(norm(x, prefix + ".norm1.weight"), 0, 1), &layout);
  const Matrix middle = add(x, attended, 2);
  return add(middle, mlp(prefix, modulate(norm(middle, prefix + ".norm2.weight"), 3, 4), int8_), 5);
}

Matrix Model::heads(const Matrix& x, const Matrix& t_emb, std::int64_t timestep_row, const std::string& layer,
                    std::int64_t n) const {
  const std::int64_t d = spec_.hidden;
  const Matrix projected =
      linear(silu_rows(t_emb), "final_layer.adaln_proj.linear", 2 * d, true, spec_.curve(), !spec_.curve());
  const double* shift = projected.row(timestep_row);
  const double* scale = shift + d;
  Matrix z = norm(x, "final_layer.norm.weight");
  for (std::int64_t t = 0; t < z.rows; ++t)
    for (std::int64_t c = 0; c < d; ++c)
      z.row(t)[c] = spec_.curve() ? z.row(t)[c] * (1 + scale[c]) + shift[c]
                                  : round(round(z.row(t)[c] * round(1 + scale[c])) + shift[c]);
  return linear(z, layer, n, true, true, false);
}

Matrix Model::video_rows(const Matrix& x, const Matrix& t_emb, std::int64_t timestep_row) const {
  return heads(x, t_emb, timestep_row, "final_layer.video_out", spec_.patch_width());
}
Matrix Model::audio_rows(const Matrix& x, const Matrix& t_emb, std::int64_t timestep_row) const {
  return heads(x, t_emb, timestep_row, "final_layer.audio_out", spec_.audio_channels);
}

namespace {

Matrix matrix(const std::vector<float>& values, std::int64_t cols) {
  Matrix m(static_cast<std::int64_t>(values.size()) / cols, cols);
  std::copy(values.begin(), values.end(), m.values.begin());
  return m;
}

Matrix rows_of(const Matrix& x, std::int64_t start, std::int64_t stop) {
  Matrix part(stop - start, x.cols);
  std::copy(x.row(start), x.row(stop), part.values.begin());
  return part;
}

std::vector<float> floats(const Matrix& m) {
  return {m.values.begin(), m.values.end()};
}

// Row of a video: patch (y, x) of frame t; odd sizes wrap around.
Matrix video_rows(const std::vector<float>& latent, std::int64_t channels, std::int64_t t, std::int64_t h,
                  std::int64_t w) {
  const std::int64_t gh = (h + 1) / 2, gw = (w + 1) / 2;
  Matrix rows(t * gh * gw, channels * 4);
  for (std::int64_t f = 0; f < t; ++f)
    for (std::int64_t y = 0; y < gh; ++y)
      for (std::int64_t x = 0; x < gw; ++x)
        for (std::int64_t c = 0; c < channels; ++c)
          for (std::int64_t p = 0; p < 4; ++p)
            rows.row((f * gh + y) * gw + x)[4 * c + p] = latent[static_cast<std::size_t>(
                ((c * t + f) * h + (2 * y + p / 2) % h) * w + (2 * x + p % 2) % w)];
  return rows;
}

}  // namespace

const std::vector<float>& Result::at(const std::string& name) const {
  for (const auto& [key, values] : tensors)
    if (key == name) return values;
  throw std::out_of_range(name);
}

Result forward(const Model& model, const spec::ModelSpec& spec, const spec::JobSpec& job,
               const Inputs& inputs, float sigma, const spec::TimestepOptions& options, Numerics numerics) {
  const spec::Layout layout(job);
  const spec::Timesteps timesteps = spec::make_timesteps(layout, sigma, options);
  Matrix audio_in(2 * job.audio_t, spec.audio_channels);
  for (std::int64_t s = 0; s < 2; ++s)
    for (std::int64_t a = 0; a < job.audio_t; ++a)
      for (std::int64_t c = 0; c < spec.audio_channels; ++c)
        audio_in.row(s * job.audio_t + a)[c] =
            inputs.audio[static_cast<std::size_t>((c * 2 + s) * job.audio_t + a)];

  Result result;
  const Matrix text = model.refine(matrix(inputs.text, spec.text_dim));
  const Matrix visual = model.embed_video(matrix(inputs.visual_rows, spec.patch_width()));
  const Matrix sound = model.embed_audio(matrix(inputs.audio_rows, spec.audio_channels));
  const Matrix video = model.embed_video(
      video_rows(inputs.video, spec.video_channels, job.latent_t, job.latent_h, job.latent_w));
  const Matrix audio = model.embed_audio(audio_in);
  Matrix x(layout.tokens(), spec.hidden);
  std::int64_t visual_row = 0, sound_row = 0;
  for (const spec::Segment& s : layout.segments()) {
    const std::int64_t count = s.stop - s.start;
    const double* src = nullptr;
    switch (s.kind) {
      case spec::SegmentKind::kText:
        src = text.row(0);
        break;
      case spec::SegmentKind::kVideo:
        src = video.row(0);
        break;
      case spec::SegmentKind::kAudio:
        src = audio.row(0);
        break;
      case spec::SegmentKind::kCond:
      case spec::SegmentKind::kRefImage:
        src = visual.row(std::exchange(visual_row, visual_row + count));
        break;
      case spec::SegmentKind::kCondAudio:
      case spec::SegmentKind::kRefAudio:
        src = sound.row(std::exchange(sound_row, sound_row + count));
        break;
    }
    std::copy(src, src + count * spec.hidden, x.row(s.start));
  }
  result.tensors.emplace_back("embed", floats(x));
  const Matrix t_emb = model.time_embedding(timesteps.unique);
  result.tensors.emplace_back("t_emb", floats(t_emb));
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    x = model.block(i, x, t_emb, layout, timesteps.segments);
    result.tensors.emplace_back(fmt::format("block{}", i), floats(x));
  }
  const auto out = [&](double v) {
    return -(numerics == Numerics::kPortable ? round_to<BF16>(static_cast<float>(v)) : static_cast<float>(v));
  };
  const Matrix vr =
      model.video_rows(rows_of(x, layout.video().start, layout.video().stop), t_emb, timesteps.video_row);
  const Matrix ar =
      model.audio_rows(rows_of(x, layout.audio().start, layout.audio().stop), t_emb, timesteps.audio_row);
  std::vector<float> video_out(inputs.video.size()), audio_out(inputs.audio.size());
  const std::int64_t gh = (job.latent_h + 1) / 2, gw = (job.latent_w + 1) / 2;
  for (std::int64_t c = 0; c < spec.video_channels; ++c)
    for (std::int64_t t = 0; t < job.latent_t; ++t)
      for (std::int64_t y = 0; y < job.latent_h; ++y)
        for (std::int64_t xx = 0; xx < job.latent_w; ++xx)
          video_out[static_cast<std::size_t>(((c * job.latent_t + t) * job.latent_h + y) * job.latent_w +
                                             xx)] =
              out(vr.row((t * gh + y / 2) * gw + xx / 2)[4 * c + 2 * (y % 2) + xx % 2]);
  for (std::int64_t c = 0; c < spec.audio_channels; ++c)
    for (std::int64_t s = 0; s < 2; ++s)
      for (std::int64_t a = 0; a < job.audio_t; ++a)
        audio_out[static_cast<std::size_t>((c * 2 + s) * job.audio_t + a)] =
            out(ar.row(s * job.audio_t + a)[c]);
  result.tensors.emplace_back("video_out", video_out);
  result.tensors.emplace_back("audio_out", audio_out);
  return result;
}

}  // namespace h3s::reference
