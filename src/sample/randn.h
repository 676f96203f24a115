// Normal random numbers, those of PyTorch's CPU generator: a same-seed render starts from the same noise.
//
// Bit-equal to torch.randn(n, generator=..., dtype=float32) of PyTorch 2.11 on x86-64 with AVX2; on the other
// processors PyTorch itself differs in the last bits. The source of the numbers is mt19937 seeded with the
// low 32 bits of the seed.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

namespace h3s::sample {

class TorchGenerator {
 public:
  explicit TorchGenerator(std::uint64_t seed);

  // Fills out[0, n) with standard normal values; the stream goes on where the last call left it. How a number
  // comes about depends on n (scalar below 16, in groups of 16 from there), so one call of n is not two calls
  // of n / 2.
  void randn(float* out, std::int64_t n);

  // The whole state as one line of text, and back. Throws Error(kBadFile) when the text is no state.
  std::string save() const;
  static TorchGenerator restore(const std::string& text);

 private:
  float uniform24();   // [0, 1), multiples of 2^-24
  double uniform53();  // [0, 1), multiples of 2^-53
  float scalar_normal();
  void fill_groups(float* out, std::int64_t n);

  std::mt19937 engine_;
  std::optional<double> second_normal_;  // the sine half of a scalar Box-Muller pair, not yet handed out
};

}  // namespace h3s::sample
