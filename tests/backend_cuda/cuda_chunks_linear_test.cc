// Linears: any chunks of rows, any first rows, and the columns of any group of heads have the bits of the
// whole, for every dtype and every kernel the device can run.
#include <fmt/format.h>

#include <array>

#include "backend/cuda/linear.h"
#include "backend_cuda/chunks.h"

namespace h3s::test {
namespace {

const std::vector<std::array<std::int64_t, 2>> kHeadGroups{
    {0, 1}, {1, 1}, {2, 1}, {0, 2}, {1, 2}};  // first, heads
constexpr std::int64_t kRows = 4099, kHeads = 3, kHeadWidth = 128, kN = kHeads * kHeadWidth;

// y[begin : begin + rows][n0 : n0 + n] of one layer, into `y` with rows of `stride` elements.
struct Slice {
  std::int64_t begin, rows, n0, n;
  void* y;
  std::int64_t stride;
  kernels::Parts parts = {};
};

// One linear layer of kRows x n and one way to compute it.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string name() const = 0;
  virtual std::int64_t y_bytes() const = 0;
  virtual void run(const Slice& s) const = 0;
};

using FloatKernel = void (*)(const kernels::LinearArgs&, cudaStream_t);
using Int8Kernel = void (*)(const kernels::LinearInt8Args&, cudaStream_t);

template <typename TX, typename TW, typename TY>
class FloatLayer final : public Layer {
 public:
  FloatLayer(const char* kernel_name, FloatKernel kernel, std::int64_t k, std::int64_t n = kN)
      : kernel_name_(kernel_name),
        kernel_(kernel),
        k_(k),
        x_(random_values<TX>(kRows * k, 1)),
        w_(random_values<TW>(n * k, 2)),
        bias_(random_values<float>(n, 3)) {}
  std::string name() const override {
    return fmt::format("linear {} x {} w {} y {} k {}", kernel_name_, dtype_name(kDTypeOf<TX>),
                       dtype_name(kDTypeOf<TW>), dtype_name(kDTypeOf<TY>), k_);
  }
  std::int64_t y_bytes() const override { return sizeof(TY); }
  void run(const Slice& s) const override {
    kernel_({x_.data() + s.begin * k_, kDTypeOf<TX>, k_, w_.data() + s.n0 * k_, kDTypeOf<TW>,
             bias_.data() + s.n0, s.y, kDTypeOf<TY>, s.stride, s.rows, s.n, k_, s.parts},
            nullptr);
  }

 private:
  const char* kernel_name_;
  FloatKernel kernel_;
  std::int64_t k_;
  OnDevice<TX> x_;
  OnDevice<TW> w_;
  OnDevice<float> bias_;
};

template <typename TY>
class Int8Layer final : public Layer {
 public:
  Int8Layer(const char* kernel_name, Int8Kernel kernel, std::int64_t k, std::int64_t n = kN)
      : kernel_name_(kernel_name),
        kernel_(kernel),
        k_(k),
        x_(random_codes(kRows * k, 4)),
        w_(random_codes(n * k, 5)),
        x_scale_(random_values<float>(kRows, 6, 0.01f)),
        w_scale_(random_values<float>(n, 7, 0.01f)) {}
  std::string name() const override {
    return fmt::format("linear_int8 {} y {} k {}", kernel_name_, dtype_name(kDTypeOf<TY>), k_);
  }
  std::int64_t y_bytes() const override { return sizeof(TY); }
  void run(const Slice& s) const override {
    kernel_({x_.data() + s.begin * k_, x_scale_.data() + s.begin, w_.data() + s.n0 * k_,
             w_scale_.data() + s.n0, nullptr, s.y, kDTypeOf<TY>, s.stride, s.rows, s.n, k_, s.parts},
            nullptr);
  }

 private:
  const char* kernel_name_;
  Int8Kernel kernel_;
  std::int64_t k_;
  OnDevice<std::int8_t> x_, w_;
  OnDevice<float> x_scale_, w_scale_;
};

int device_sm() {
  int major = 0, minor = 0;
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  return 10 * major + minor;
}

std::vector<std::unique_ptr<Layer>> layers() {
  std::vector<std::unique_ptr<Layer>> all;
  const auto add = [&](auto* layer) { all.emplace_back(layer); };
  const int sm = device_sm();
  const auto tensor = [&](const char* name, FloatKernel kernel) {
    if (sm >= 80) {
      add(new FloatLayer<BF16, BF16, BF16>(name, kernel, 264));
      add(new FloatLayer<BF16, BF16, float>(name, kernel, 1032));
    }
    add(new FloatLayer<F16, F16, F16>(name, kernel, 264));
    add(new FloatLayer<F16, F16, float>(name, kernel, 72));
  };
  const auto int8 = [&](const char* name, Int8Kernel kernel, std::int64_t k) {
    add(new Int8Layer<BF16>(name, kernel, k));
    add(new Int8Layer<float>(name, kernel, k));
  };
  if (sm / 10 == 9) tensor("sm90", cuda::linear_sm90), int8("sm90", cuda::linear_int8_sm90, 272);
  tensor("mma", cuda::linear_mma), int8("mma", cuda::linear_int8_mma, 272);
  int8("plain", cuda::linear_int8_plain, 37);
  add(new FloatLayer<float, float, float>("fma", cuda::linear_fma, 300));
  add(new FloatLayer<float, BF16, BF16>("fma", cuda::linear_fma, 300));
  add(new FloatLayer<BF16, BF16, BF16>("fma", cuda::linear_fma, 37));
  add(new FloatLayer<F16, F16, F16>("fma", cuda::linear_fma, 37));
  return all;
}

TEST(LinearChunks, Rows) {
  for (const auto& layer : layers())
    expect_chunks_equal_whole(
        layer->name(), {kN * layer->y_bytes()},
        [&](std::int64_t begin, std::int64_t rows, std::int64_t, const std::vector<void*>& out) {
          layer->run(
              {begin, rows, 0, kN, static_cast<std::byte*>(out[0]) + begin * kN * layer->y_bytes(), kN});
        });
}

std::vector<std::uint8_t> computed(const Layer& layer, Slice slice) {
  const DeviceOutput y(slice.rows * slice.n * layer.y_bytes());
  slice.y = y.data(), slice.stride = slice.n;
  layer.run(slice);
  return y.read(layer.name());
}

// The first M rows, for M around every power of two and tile height.
TEST(LinearChunks, FirstRows) {
  std::vector<std::int64_t> picks;
  for (std::int64_t power = 1; power <= 4096; power *= 2)
    for (const std::int64_t m : {power - 1, power, power + 1, power * 3 / 2})
      if (m >= 1 && m <= 4097) picks.push_back(m);
  for (const auto& layer : layers()) {
    const std::vector<std::uint8_t> whole = computed(*layer, {0, 4097, 0, kN, nullptr, 0});
    for (const std::int64_t m : picks) {
      const std::vector<std::uint8_t> part = computed(*layer, {0, m, 0, kN, nullptr, 0});
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()))
          << layer->name() << ", first " << m << " rows";
    }
  }
}

// The columns of heads [h, h + g) at a few heights, tensor-core tails included.
TEST(LinearChunks, ColumnsOfHeadGroups) {
  for (const auto& layer : layers())
    for (const std::int64_t m : {1, 33, 129, 300}) {
      const std::vector<std::uint8_t> whole = computed(*layer, {0, m, 0, kN, nullptr, 0});
      const std::int64_t size = layer->y_bytes();
      for (const auto& [first, heads] : kHeadGroups) {
        const std::int64_t n0 = first * kHeadWidth, n = heads * kHeadWidth;
        const std::vector<std::uint8_t> part = computed(*layer, {0, m, n0, n, nullptr, 0});
        for (std::int64_t r = 0; r < m; ++r)
          ASSERT_TRUE(std::equal(part.begin() + r * n * size, part.begin() + (r + 1) * n * size,
                                 whole.begin() + (r * kN + n0) * size))
              << layer->name() << ", m " << m << ", heads " << first << " to " << first + heads << ", row "
              << r;
      }
    }
}

// The q, k and v columns of heads [h, h + g) in one product, as the engine asks for them, are those of the
// whole.
TEST(LinearChunks, PartsOfHeadGroups) {
  constexpr std::int64_t kParts = 3, kAll = kParts * kN, kM = 300;
  std::vector<std::unique_ptr<Layer>> all;
  all.emplace_back(new FloatLayer<BF16, BF16, BF16>("by device", cuda::linear, 264, kAll));
  all.emplace_back(new FloatLayer<F16, F16, F16>("by device", cuda::linear, 264, kAll));
  all.emplace_back(new FloatLayer<float, float, float>("by device", cuda::linear, 300, kAll));
  all.emplace_back(new Int8Layer<BF16>("by device", cuda::linear_int8, 272, kAll));
  all.emplace_back(new Int8Layer<float>("by device", cuda::linear_int8, 37, kAll));
  for (const auto& layer : all) {
    const std::vector<std::uint8_t> whole = computed(*layer, {0, kM, 0, kAll, nullptr, 0});
    const std::int64_t size = layer->y_bytes();
    for (const auto& [first, heads] : kHeadGroups) {
      const std::int64_t width = heads * kHeadWidth, n = kParts * width;
      const std::vector<std::uint8_t> got =
          computed(*layer, {0, kM, first * kHeadWidth, n, nullptr, 0, {kParts, kN}});
      for (std::int64_t r = 0; r < kM; ++r)
        for (std::int64_t p = 0; p < kParts; ++p)
          ASSERT_TRUE(std::equal(got.begin() + (r * n + p * width) * size,
                                 got.begin() + (r * n + (p + 1) * width) * size,
                                 whole.begin() + (r * kAll + p * kN + first * kHeadWidth) * size))
              << layer->name() << ", heads " << first << " + " << heads << ", part " << p << ", row " << r;
    }
  }
}

}  // namespace
}  // namespace h3s::test
