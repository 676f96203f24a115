// Synthetic weights and inputs: any element of any tensor from its name and a seed, so that they need not be
// stored.
//
// Element i of tensor NAME: SplitMix64 of fnv1a64(NAME) xor seed at step i + 1; its upper 24 bits make u in
// [-1, 1). The name's ending decides what u becomes (generator.cc). All values are exact functions of the
// text here: every machine makes the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/parts.h"
#include "checkpoint/tags.h"
#include "io/safetensors.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

std::uint64_t fnv1a64(std::string_view text);

// The upper 24 bits of the generator at element `i`; `base` is fnv1a64(NAME) xor seed.
std::uint32_t random_bits24(std::uint64_t base, std::uint64_t i);

// One tensor's values. Pure and thread-safe.
class TensorGenerator {
 public:
  // A weight; `name` is its key without prefix, `shape` decides the fan-in.
  static TensorGenerator weight(std::string_view name, const std::vector<std::int64_t>& shape,
                                std::uint64_t seed);
  // An input of a job, for instance "t2va.video": u * float(sqrt(3)), rounded to bf16.
  static TensorGenerator input(std::string_view name, std::uint64_t seed);

  // Elements [begin, end) in row-major order, unrounded (inputs: bf16 numbers), into out[end - begin].
  void values(std::int64_t begin, std::int64_t end, float* out) const;

  // The same, rounded to nearest even to `dtype` (F32, BF16 or F16), into out[(end - begin) * size].
  void stored(DType dtype, std::int64_t begin, std::int64_t end, std::byte* out) const;

 private:
  enum class Rule { kScaled, kNorm, kRope, kInput };

  TensorGenerator(std::uint64_t base, Rule rule, float factor) : base_(base), rule_(rule), factor_(factor) {}

  std::uint64_t base_;
  Rule rule_;
  float factor_;             // kScaled, kInput: multiplies u
  std::int64_t length_ = 0;  // kRope: elements of the tensor
};

// dtype of a part that is not quantised: F32 for islands, tables and, in the curve form, adaln; BF16
// otherwise.
DType stored_dtype(PartKind kind, const spec::ModelSpec& spec);

// Rotation group of a synthetic layer with k columns: 256, or the largest power of 4 that divides k; 0: none.
std::int64_t synthetic_rotate_group(std::int64_t k);

// Whether a synthetic file of this format stores the part quantised: the four linears of every block.
bool stored_quantised(PartKind kind, WeightFormat format);

// Every tensor of a synthetic checkpoint in file order, in network order: weight, then companions and tag
// when quantised, then bias. `format` is kBF16 or a quantised one; otherwise, and for widths the format
// cannot hold, throws Error(kInvalidArgument).
std::vector<io::TensorDecl> checkpoint_tensors(const spec::ModelSpec& spec, WeightFormat format,
                                               const std::string& prefix = "");

// Tags of its layers, by layer.
std::map<std::string, QuantTag> checkpoint_tags(const spec::ModelSpec& spec, WeightFormat format,
                                                const std::string& prefix = "");

}  // namespace h3s::checkpoint
