#include "sample/randn.h"

#include <bit>
#include <cmath>
#include <numbers>
#include <sstream>

#include "base/error.h"

namespace h3s::sample {
namespace {

constexpr std::int64_t kGroup = 16;  // values of one vector Box-Muller: 8 radii with 8 angles

// Natural logarithm of u in [2^-24, 1]: the Cephes single-precision polynomial (S. Moshier, logf), with the
// fused multiply-adds that PyTorch's AVX2 build has. The order fixes the bits.
float log_f32(float u) {
  constexpr float kCoefficients[] = {-1.1514610310E-1f, 1.1676998740E-1f,  -1.2420140846E-1f,
                                     1.4249322787E-1f,  -1.6668057665E-1f, 2.0000714765E-1f,
                                     -2.4999993993E-1f, 3.3333331174E-1f};
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  int exponent = 0;
  float x = std::frexp(u, &exponent);
  if (x < std::numbers::sqrt2_v<float> / 2) {
    x += x;
    --exponent;
  }
  x -= 1.0f;
  const auto e = static_cast<float>(exponent);
  const float z = x * x;
  float y = 7.0376836292E-2f;
  for (const float c : kCoefficients) y = std::fma(y, x, c);
  y = std::fma(y * x, z, e * kLn2Low);
  y = std::fma(-0.5f, z, y);
  return std::fma(e, kLn2High, x + y);
}

struct SinCos {
  float sin, cos;
};

// Sine and cosine of x in [0, 2 pi]: Cephes sinf and cosf on an octant, fused as above.
SinCos sincos_f32(float x) {
  constexpr float kOctantsPerRadian = 1.27323954473516f;
  const int octant = (static_cast<int>(x * kOctantsPerRadian) + 1) & ~1;
  const auto y = static_cast<float>(octant);
  x = std::fma(y, -0.78515625f, x);  // pi / 4 in three parts
  x = std::fma(y, -2.4187564849853515625e-4f, x);
  x = std::fma(y, -3.77489497744594108e-8f, x);
  const float z = x * x;
  float c = std::fma(2.443315711809948e-5f, z, -1.388731625493765e-3f);
  c = std::fma(c, z, 4.166664568298827e-2f);
  c = std::fma(c * z, z, -0.5f * z) + 1.0f;
  float s = std::fma(-1.9515295891e-4f, z, 8.3321608736e-3f);
  s = std::fma(s, z, -1.6666654611e-1f);
  s = std::fma(s * z, x, x);
  const bool swapped = (octant & 2) != 0;
  const float sine = swapped ? c : s, cosine = swapped ? s : c;
  return {(octant & 4) != 0 ? -sine : sine, ((octant + 2) & 4) != 0 ? -cosine : cosine};
}

// Sixteen uniforms to sixteen normals in place: radii from the first eight, angles from the others.
void box_muller_group(float* group) {
  for (std::int64_t i = 0; i < kGroup / 2; ++i) {
    const float radius = std::sqrt(-2.0f * log_f32(1.0f - group[i]));
    const SinCos angle = sincos_f32(2.0f * std::numbers::pi_v<float> * group[i + kGroup / 2]);
    group[i] = radius * angle.cos;
    group[i + kGroup / 2] = radius * angle.sin;
  }
}

}  // namespace

TorchGenerator::TorchGenerator(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

float TorchGenerator::uniform24() {
  return static_cast<float>(engine_() & 0xFFFFFFu) * 0x1p-24f;
}

double TorchGenerator::uniform53() {
  const std::uint64_t high = engine_(), low = engine_();
  return static_cast<double>((high << 32 | low) & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
}

float TorchGenerator::scalar_normal() {
  if (second_normal_) {
    const double value = *second_normal_;
    second_normal_.reset();
    return static_cast<float>(value);
  }
  const double turn = uniform53(), u = uniform53();
  const double radius = std::sqrt(-2.0 * std::log1p(-u));
  const double angle = 2.0 * std::numbers::pi * turn;
  second_normal_ = radius * std::sin(angle);
  return static_cast<float>(radius * std::cos(angle));
}

void TorchGenerator::fill_groups(float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = uniform24();
  for (std::int64_t i = 0; i + kGroup <= n; i += kGroup) box_muller_group(out + i);
}

void TorchGenerator::randn(float* out, std::int64_t n) {
  if (n < kGroup) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = scalar_normal();
    return;
  }
  fill_groups(out, n);
  if (n % kGroup != 0) fill_groups(out + n - kGroup, kGroup);  // a ragged end draws its last 16 values anew
}

std::string TorchGenerator::save() const {
  std::ostringstream text;
  text << engine_ << ' ' << second_normal_.has_value() << ' '
       << std::bit_cast<std::uint64_t>(second_normal_.value_or(0.0));
  return text.str();
}

TorchGenerator TorchGenerator::restore(const std::string& text) {
  TorchGenerator generator(0);
  std::istringstream in(text);
  bool has_second = false;
  std::uint64_t second = 0;
  if (!(in >> generator.engine_ >> has_second >> second))
    fail(Status::kBadFile, "[randn] not a generator state");
  if (has_second) generator.second_normal_ = std::bit_cast<double>(second);
  return generator;
}

}  // namespace h3s::sample
