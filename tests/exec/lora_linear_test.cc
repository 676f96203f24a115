// One linear layer of every format with LoRAs: against the dequantised weight plus the difference in
// binary64, and, merged, code for code against the stock arithmetic written out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "checkpoint/draw.h"
#include "checkpoint/formats.h"
#include "checkpoint/generator.h"
#include "exec/engine_fixture.h"
#include "exec/weight_loader.h"
#include "lora_file.h"
#include "model/linear.h"

namespace h3s::test {
namespace {

using checkpoint::LinearSource;
using checkpoint::LoraMode;
using checkpoint::LoraRequest;
using checkpoint::WeightFormat;

constexpr std::int64_t kRows = 40, kRank = 12;
constexpr float kStrength = 0.5f;
constexpr const char* kLayer = "blocks.0.mlp.fc1";

std::vector<float> numbers(const std::string& name, std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  checkpoint::TensorGenerator::input(name, 3).values(0, count, out.data());
  return out;
}

// W as the format's own decoder gives it, unrounded; [n, k].
std::vector<double> dequantised(const checkpoint::Checkpoint& checkpoint, const LinearSource& source) {
  std::vector<double> out;
  std::vector<float> row(static_cast<std::size_t>(source.k));
  for (std::int64_t i = 0; i < source.n; ++i) {
    if (source.plain())
      checkpoint::LoraTensor{checkpoint.data(*source.weight), source.weight->dtype}.read(i * source.k, row);
    else
      format_row(source.format)
          .rows.dequantize(checkpoint::StoredLayer(checkpoint.file(), source), i, DType::kF32, row.data());
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

struct LayerCase {
  const char* name;
  WeightFormat format;
  DType compute;
  double step;
};

class LoraLinear : public testing::TestWithParam<LayerCase> {
 protected:
  LoraLinear() : spec_(small_spec()), file_(spec_, GetParam().format), source_(file_.get().linear(kLayer)) {
    lora_.random(fmt::format("{}.lora_A.weight", kLayer), {kRank, source_.k},
                 1 / std::sqrt(static_cast<float>(source_.k)));
    lora_.random(fmt::format("{}.lora_B.weight", kLayer), {source_.n, kRank}, 0.2f);
    lora_.values(fmt::format("{}.alpha", kLayer), {},
                 {2 * kRank});  // so that the scale is the strength twice
    requests_ = {{lora_.write(), kStrength}};
    x_.resize(static_cast<std::size_t>(kRows * source_.k));
    const std::vector<float> values = numbers("x", kRows * source_.k);
    std::transform(values.begin(), values.end(), x_.begin(), to_bf16);
  }

  checkpoint::Checkpoint with(LoraMode mode) const { return file_.get().with_loras(requests_, mode); }

  // What the engine makes of x; f32 output, so that only the format's errors are seen.
  std::vector<float> engine(const checkpoint::Checkpoint& checkpoint) const {
    mem::Accountant books(mem::make_heap_allocator());
    const auto backend = cpu::make_backend(1, books);
    const exec::WeightLoader bare(checkpoint, GetParam().compute, true);
    const mem::Buffer merge_memory =
        books.allocate(mem::Space::kHost, bare.sizes().merge_bytes, "merging of LoRAs");
    const exec::WeightLoader loader = bare.with_merge_memory(merge_memory.data());
    std::vector<std::byte> slot(static_cast<std::size_t>(loader.sizes().largest_block));
    std::int64_t used = 0;
    const model::BlockWeights block = loader.load_block("blocks.0", true, {slot.data(), slot.data()}, &used);
    EXPECT_EQ(used, loader.sizes().blocks[0]);
    const model::LinearWeight& weight = block.fc1;
    model::Carver measure;
    model::QuantScratch::take_with_numbers(measure, kRows, weight.k, loader.sizes().low_rank_row_bytes);
    std::vector<std::byte> memory(static_cast<std::size_t>(measure.used_bytes()));
    model::Carver carver(memory.data());
    const auto scratch =
        model::QuantScratch::take_with_numbers(carver, kRows, weight.k, loader.sizes().low_rank_row_bytes);
    std::vector<float> wide(x_.size());
    std::transform(x_.begin(), x_.end(), wide.begin(), [](BF16 v) { return to_float(v); });
    const bool bf16 = GetParam().compute == DType::kBF16;
    const void* x = bf16 ? static_cast<const void*>(x_.data()) : wide.data();
    float peak = 0;
    if (weight.needs_peak())
      measure_input(*backend, weight, x, GetParam().compute, weight.k, kRows, true, &peak);
    const auto input =
        prepare_input(*backend, weight, x, GetParam().compute, weight.k, kRows, scratch, &peak);
    std::vector<float> y(static_cast<std::size_t>(kRows * weight.n));
    linear(*backend, weight, input, y.data(), DType::kF32, weight.n);
    return y;
  }

  // x . (W + scale B A)^T in binary64; `scale` 0: the base.
  std::vector<double> exact(double scale) const {
    std::vector<double> w = dequantised(file_.get(), source_);
    const auto a = numbers_of(".lora_A.weight", kRank * source_.k),
               b = numbers_of(".lora_B.weight", source_.n * kRank);
    for (std::int64_t n = 0; n < source_.n; ++n)
      for (std::int64_t j = 0; j < kRank; ++j)
        for (std::int64_t k = 0; k < source_.k; ++k)
          w[at(n * source_.k + k)] += scale * b[at(n * kRank + j)] * a[at(j * source_.k + k)];
    std::vector<double> y;
    for (std::int64_t m = 0; m < kRows; ++m)
      for (std::int64_t n = 0; n < source_.n; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < source_.k; ++k)
          sum += double{to_float(x_[at(m * source_.k + k)])} * w[at(n * source_.k + k)];
        y.push_back(sum);
      }
    return y;
  }

  std::vector<float> numbers_of(const std::string& suffix, std::int64_t count) const {
    const io::SafetensorsReader file = io::SafetensorsReader::open(requests_[0].path);
    const io::TensorInfo& info = file.at(kLayer + suffix);
    std::vector<float> out(static_cast<std::size_t>(count));
    checkpoint::LoraTensor{file.data(info), info.dtype}.read(0, out);
    return out;
  }

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  static double rms_difference(const std::vector<float>& got, const std::vector<double>& want) {
    double difference = 0;
    for (std::size_t i = 0; i < want.size(); ++i) difference += (got[i] - want[i]) * (got[i] - want[i]);
    return std::sqrt(difference / static_cast<double>(want.size()));
  }
  static double rms(const std::vector<double>& values) {
    double sum = 0;
    for (const double v : values) sum += v * v;
    return std::sqrt(sum / static_cast<double>(values.size()));
  }

  spec::ModelSpec spec_;
  CheckpointFile file_;
  LinearSource source_;
  LoraFile lora_;
  std::vector<LoraRequest> requests_;
  std::vector<BF16> x_;
};

// The error is the base's own, plus that of the low-rank product: x . A^T is rounded to bf16 once, 2^-9 of it
// at most, so is A times the scale (not here: the scale is 1), and float sums.
TEST_P(LoraLinear, RuntimeIsDequantiseAndAdd) {
  const std::vector<double> base = exact(0), adapted = exact(2 * kStrength);
  std::vector<double> added = adapted;
  for (std::size_t i = 0; i < added.size(); ++i) added[i] -= base[i];
  ASSERT_GT(rms(added), 0.2 * rms(base));
  const double own = rms_difference(engine(file_.get()), base);
  const double bound = own + (GetParam().compute == DType::kBF16 ? 0x1p-9 : 0x1p-20) * rms(added);
  const double got = rms_difference(engine(with(LoraMode::kRuntime)), adapted);
  EXPECT_LE(got, bound + 1e-6 * rms(base)) << "the base's own " << own;
}

// Merged, the weight is quantised once more and its codes are drawn: an error of step^2 / 6 on average.
TEST_P(LoraLinear, MergedIsDequantiseAndAddWithinAStep) {
  const std::vector<double> base = exact(0), adapted = exact(2 * kStrength);
  std::vector<double> added = adapted;
  for (std::size_t i = 0; i < added.size(); ++i) added[i] -= base[i];
  const double own = rms_difference(engine(file_.get()), base);
  const double bound = own + GetParam().step / std::sqrt(6.0) * rms(adapted);
  ASSERT_LT(bound, 0.7 * rms(added)) << "would not see a LoRA that is not there";
  EXPECT_LE(rms_difference(engine(with(LoraMode::kMerge)), adapted), bound + 1e-6 * rms(base));
}

// Steps of codes relative to a weight of the usual size: of floats with m bits of mantissa 2^-m; of row or
// group scales the largest magnitude, at most 4.5 times the usual in a row and about 2 in a group of 16, over
// the codes.
constexpr LayerCase kCases[] = {{"bf16", WeightFormat::kBF16, DType::kBF16, 0x1p-7},
                                {"fp32", WeightFormat::kBF16, DType::kF32, 0x1p-20},
                                {"int8", WeightFormat::kInt8Tensorwise, DType::kBF16, 4.5 / 127},
                                {"int8_fp32", WeightFormat::kInt8Tensorwise, DType::kF32, 4.5 / 127},
                                {"fp8", WeightFormat::kFloat8E4M3, DType::kBF16, 0x1p-3},
                                {"fp8_e5m2", WeightFormat::kFloat8E5M2, DType::kBF16, 0x1p-2},
                                {"mxfp8", WeightFormat::kMxfp8, DType::kBF16, 0x1p-3},
                                {"nvfp4", WeightFormat::kNvfp4, DType::kBF16, 2.0 / 6},
                                {"w4a8", WeightFormat::kAsymW4A8, DType::kBF16, 2.0 / 8},
                                {"w4a4", WeightFormat::kConvrotW4A4, DType::kBF16, 4.5 / 7}};
INSTANTIATE_TEST_SUITE_P(Formats, LoraLinear, testing::ValuesIn(kCases),
                         [](const auto& param_info) { return param_info.param.name; });

float bf(float v) {
  return round_to<BF16>(v);
}

// Dequantise, add in bf16, rotate, a new scale, a drawn code: written out from the format's description.
TEST(LoraMerge, Int8HasTheCodesOfStocksArithmetic) {
  const CheckpointFile file(small_spec(), WeightFormat::kInt8Tensorwise);
  const LinearSource source = file.get().linear(kLayer);
  const auto n = source.n, k = source.k;
  LoraFile first, second;
  first.pair(fmt::format("diffusion_model.{}", kLayer), n, k, 7);
  second.pair(fmt::format("diffusion_model.{}", kLayer), n, k, 3);
  const std::vector<LoraRequest> requests{{first.write(), 0.7f}, {second.write(), -0.3f}};
  const auto adapted = file.get().with_loras(requests, LoraMode::kMerge);

  mem::Accountant books(mem::make_heap_allocator());
  const exec::WeightLoader bare(adapted, DType::kBF16, true);
  const mem::Buffer merge_memory =
      books.allocate(mem::Space::kHost, bare.sizes().merge_bytes, "merging of LoRAs");
  const exec::WeightLoader loader = bare.with_merge_memory(merge_memory.data());
  std::vector<std::byte> slot(static_cast<std::size_t>(loader.sizes().largest_block));
  std::int64_t used = 0;
  const model::LinearWeight got = loader.load_block("blocks.0", true, {slot.data(), slot.data()}, &used).fc1;
  ASSERT_EQ(got.dtype, DType::kI8);

  constexpr std::array<std::array<float, 4>, 4> kH4{
      {{1, 1, 1, -1}, {1, 1, -1, 1}, {1, -1, 1, 1}, {-1, 1, 1, 1}}};
  const std::uint32_t seed = checkpoint::draw_seed("diffusion_model.blocks.0.mlp.fc1.weight");
  std::vector<float> w(static_cast<std::size_t>(k));
  std::int64_t different = 0;
  for (std::int64_t row = 0; row < n; row += 37) {
    format_row(source.format)
        .rows.dequantize(checkpoint::StoredLayer(file.get().file(), source), row, DType::kBF16, w.data());
    for (float& v : w) v = bf(v);
    for (const LoraRequest& request : requests) {
      const io::SafetensorsReader lora = io::SafetensorsReader::open(request.path);
      const auto& a = lora.at(fmt::format("diffusion_model.{}.lora_A.weight", kLayer));
      const auto& b = lora.at(fmt::format("diffusion_model.{}.lora_B.weight", kLayer));
      const auto element = [&](const io::TensorInfo& info, std::int64_t i) {
        BF16 v;
        std::memcpy(&v, lora.data(info) + 2 * i, 2);
        return to_float(v);
      };
      for (std::int64_t i = 0; i < k; ++i) {
        float sum = 0;
        for (std::int64_t j = 0; j < a.shape[0]; ++j)
          sum += element(b, row * a.shape[0] + j) * element(a, j * k + i);
        float& v = w[static_cast<std::size_t>(i)];
        v = bf(v + bf(request.strength * bf(sum)));
      }
    }
    // Rotated group by group; the sums of a stage as the fast form orders them.
    for (std::int64_t stride = 1; stride < source.rotate_group; stride *= 4)
      for (std::int64_t i = 0; i < k; ++i) {
        if (i / stride % 4 != 0) continue;
        std::array<float, 4> in, out;
        for (int p = 0; p < 4; ++p) in[p] = w[static_cast<std::size_t>(i + p * stride)];
        for (int p = 0; p < 4; ++p)
          out[p] = 0.5f * ((kH4[p][0] * in[0] + kH4[p][1] * in[1]) + (kH4[p][2] * in[2] + kH4[p][3] * in[3]));
        for (int p = 0; p < 4; ++p) w[static_cast<std::size_t>(i + p * stride)] = out[p];
      }
    float largest = 0;
    for (float& v : w) largest = std::max(largest, std::fabs(v = bf(v)));
    const float scale = largest / 127.0f;
    EXPECT_EQ(got.scale[row], scale) << row;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::uint64_t counter = static_cast<std::uint64_t>(row * k + i) + seed;
      const auto z = static_cast<std::uint32_t>(counter) ^ static_cast<std::uint32_t>(counter >> 32);
      const std::uint32_t st = z * 747796405u + 2891336453u;
      const std::uint32_t mixed = ((st >> ((st >> 28) + 4)) ^ st) * 277803737u;
      const float u = bf(static_cast<float>(((mixed >> 22) ^ mixed) >> 8) * 0x1p-24f);
      const float code =
          std::clamp(std::floor(bf(bf(w[static_cast<std::size_t>(i)] / bf(scale)) + u)), -128.0f, 127.0f);
      different += static_cast<float>(static_cast<const std::int8_t*>(got.data)[row * k + i]) != code;
    }
  }
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace h3s::test
