// The network once more, written as plain loops from its description alone: no op, no schedule, no loader of
// the engine. Tests hold the engine against it.
//
// Two numerics. kExact: binary64 throughout (but for the binary32 angle of the rotation, which is part of the
// definition): the yardstick of f32 results. kPortable: every value rounded to bf16 where the stock
// implementation's portable kernels round; sums in binary64, since their order is not defined.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "spec/layout.h"
#include "spec/model_spec.h"

namespace h3s::reference {

enum class Numerics { kExact, kPortable };

struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;
  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), cols(c), values(static_cast<std::size_t>(r * c)) {}
  double* row(std::int64_t r) { return values.data() + r * cols; }
  const double* row(std::int64_t r) const { return values.data() + r * cols; }
};

Matrix transposed_product(const Matrix& x, const Matrix& w);  // x w^T, sums in binary64

// y = x W^T of a linear of a block, in the roundings of its format.
using BlockLinear = std::function<Matrix(const Matrix& x, const std::string& layer, std::int64_t n)>;

// The portable int8 quantiser: rows rotated in groups of the synthetic size, rounded to bf16; codes; scales.
struct RotatedRows {
  Matrix codes;
  std::vector<float> scales;
};
RotatedRows portable_int8_rows(const Matrix& x);
Matrix rotated_rows(const Matrix& x);

class Model {
 public:
  // Weights come from the generator at `seed`. `int8`: the four linears of every block are int8 ConvRot, and
  // the islands are rounded to bf16 as such a file makes stock do. `linear`: they are what it says, and the
  // islands the same.
  Model(const spec::ModelSpec& spec, std::uint64_t seed, Numerics numerics, bool int8 = false);
  Model(const spec::ModelSpec& spec, std::uint64_t seed, Numerics numerics, BlockLinear linear);

  // text [L, text_dim]: projection, refiner blocks, final norm.
  Matrix refine(const Matrix& text) const;
  // f32 rows of patches or audio steps, projected.
  Matrix embed_video(const Matrix& rows) const;
  Matrix embed_audio(const Matrix& rows) const;
  // [unique timesteps, time_dim]
  Matrix time_embedding(const std::vector<double>& timesteps) const;
  Matrix block(std::int64_t idx, const Matrix& x, const Matrix& t_emb, const spec::Layout& layout,
               const std::vector<kernels::ModSegment>& segments) const;
  // Head rows of a target segment, before unpatchify and sign: rows x [start, stop) of the sequence.
  Matrix video_rows(const Matrix& x, const Matrix& t_emb, std::int64_t timestep_row) const;
  Matrix audio_rows(const Matrix& x, const Matrix& t_emb, std::int64_t timestep_row) const;

 private:
  struct Modulation;
  std::vector<double> vector(const std::string& key, std::int64_t n) const;
  Matrix weight(const std::string& layer, std::int64_t n, std::int64_t k) const;
  double round(double v) const;
  Matrix linear(const Matrix& x, const std::string& layer, std::int64_t n, bool bias, bool island,
                bool rounded = true) const;
  Matrix int8_linear(const Matrix& x, const std::string& layer, std::int64_t n) const;
  Matrix block_linear(const Matrix& x, const std::string& layer, std::int64_t n) const;
  Matrix norm(const Matrix& x, const std::string& key) const;
  Matrix attention(const std::string& prefix, const Matrix& h, const spec::Layout* layout) const;
  void head_norm_and_rope(double* head, const std::vector<double>& w, const double* position) const;
  Matrix mlp(const std::string& prefix, const Matrix& h, bool int8) const;
  Matrix silu_rows(const Matrix& t_emb) const;
  Matrix heads(const Matrix& x, const Matrix& t_emb, std::int64_t timestep_row, const std::string& layer,
               std::int64_t n) const;

  spec::ModelSpec spec_;
  std::uint64_t seed_;
  Numerics numerics_;
  bool int8_;
  BlockLinear block_linear_;
};

// One whole evaluation: tensors "embed", "block0"..., "t_emb", "video_out", "audio_out" as the engine returns
// them.
struct Result {
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
  const std::vector<float>& at(const std::string& name) const;
};
struct Inputs {
  std::vector<float> text, video, audio, visual_rows, audio_rows;
};
Result forward(const Model& model, const spec::ModelSpec& spec, const spec::JobSpec& job,
               const Inputs& inputs, float sigma, const spec::TimestepOptions& options, Numerics numerics);

}  // namespace h3s::reference
