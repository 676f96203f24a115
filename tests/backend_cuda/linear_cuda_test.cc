// The CUDA linear layers and quantisers against the CPU definitions, bit for bit where the contract says so.
// Inputs end where their buffers end, so that compute-sanitizer sees every read outside; outputs lie between
// guard bytes and are poisoned first. Exits with 1 on a mismatch, 77 when there is no GPU.
//
//   linear_cuda_test [small]     small: a few shapes, for the sanitizers
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/definitions.h"
#include "backend/cuda/check.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/quantize.h"
#include "base/float16.h"

namespace {

using h3s::DType;
using namespace h3s::kernels;
using Bytes = std::vector<std::uint8_t>;

int checks = 0, failures = 0;
int capability = 0;  // 10 x major + minor; wgmma is 90's alone, bf16 products start at 80

void check(bool ok, const std::string& name) {
  ++checks;
  if (ok) return;
  ++failures;
  std::printf("FAIL %s\n", name.c_str());
}

// ---- buffers ----

constexpr std::size_t kGuard = 1024;
constexpr std::uint8_t kGuardByte = 0xA5, kPoison = 0xFF;

class Device {
 public:
  explicit Device(const Bytes& host) : bytes_(host.size()) {
    H3S_CUDA_CHECK(cudaMalloc(&base_, bytes_));
    H3S_CUDA_CHECK(cudaMemcpy(base_, host.data(), bytes_, cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(base_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(base_);
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_;
};

// Poisoned, between guards.
class Output {
 public:
  explicit Output(std::size_t bytes) : bytes_(bytes) {
    H3S_CUDA_CHECK(cudaMalloc(&base_, bytes + 2 * kGuard));
    H3S_CUDA_CHECK(cudaMemset(base_, kGuardByte, bytes + 2 * kGuard));
    H3S_CUDA_CHECK(cudaMemset(data(), kPoison, bytes));
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() { cudaFree(base_); }
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(base_) + kGuard; }
  void hold(const Bytes& bytes) {
    H3S_CUDA_CHECK(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  // The bytes; empty when a guard was written.
  Bytes read() const {
    Bytes all(bytes_ + 2 * kGuard);
    H3S_CUDA_CHECK(cudaDeviceSynchronize());
    H3S_CUDA_CHECK(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < kGuard; ++i)
      if (all[i] != kGuardByte || all[all.size() - 1 - i] != kGuardByte) return {};
    return Bytes(all.begin() + kGuard, all.end() - kGuard);
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_;
};

std::size_t size_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kI8 ? 1 : 2;
}
const char* name_of(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBF16 ? "bf16" : dtype == DType::kF16 ? "f16" : "i8";
}

void put(Bytes& bytes, std::size_t i, float v, DType dtype) {
  if (dtype == DType::kF32) std::memcpy(&bytes[4 * i], &v, 4);
  const std::uint16_t half = dtype == DType::kBF16 ? h3s::to_bf16(v).bits : h3s::to_f16(v).bits;
  if (size_of(dtype) == 2) std::memcpy(&bytes[2 * i], &half, 2);
}

float get(const Bytes& bytes, std::size_t i, DType dtype) {
  std::uint16_t half;
  float v;
  if (dtype == DType::kF32) {
    std::memcpy(&v, &bytes[4 * i], 4);
    return v;
  }
  std::memcpy(&half, &bytes[2 * i], 2);
  return dtype == DType::kBF16 ? h3s::to_float(h3s::BF16{half}) : h3s::to_float(h3s::F16{half});
}

std::mt19937 generator(1);

Bytes normal(std::size_t count, DType dtype, float scale = 1.0f) {
  std::normal_distribution<float> draw(0.0f, scale);
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) put(bytes, i, draw(generator), dtype);
  return bytes;
}

Bytes codes(std::size_t count) {
  Bytes bytes(count);
  for (auto& b : bytes) b = static_cast<std::uint8_t>(generator());
  return bytes;
}

// Rows of y [m, stride] and the poison between them.
bool same_rows(const Bytes& got, const Bytes& expected) {
  return !got.empty() && got == expected;
}

// ---- int8 ----

void test_int8(std::int64_t m, std::int64_t n, std::int64_t k, DType y_dtype, bool with_bias,
               std::int64_t gap) {
  const Bytes x = codes(m * k), w = codes(n * k), bias = normal(n, DType::kF32);
  Bytes x_scale = normal(m, DType::kF32, 1e-3f), w_scale = normal(n, DType::kF32, 1e-3f);
  const Device dx(x), dw(w), dxs(x_scale), dws(w_scale), db(bias);
  LinearInt8Args args;
  args.y_dtype = y_dtype;
  args.y_stride = n + gap;
  args.m = m, args.n = n, args.k = k;
  Bytes expected((m * args.y_stride - gap) * size_of(y_dtype), kPoison);
  args.x = reinterpret_cast<const std::int8_t*>(x.data());
  args.w = reinterpret_cast<const std::int8_t*>(w.data());
  args.x_scale = reinterpret_cast<const float*>(x_scale.data());
  args.w_scale = reinterpret_cast<const float*>(w_scale.data());
  args.bias = with_bias ? reinterpret_cast<const float*>(bias.data()) : nullptr;
  args.y = expected.data();
  h3s::cpu::linear_int8_definition(args);

  args.x = dx.as<std::int8_t>(), args.w = dw.as<std::int8_t>();
  args.x_scale = dxs.as<float>(), args.w_scale = dws.as<float>();
  args.bias = with_bias ? db.as<float>() : nullptr;
  const auto run = [&](const char* kernel, void (*launch)(const LinearInt8Args&, cudaStream_t)) {
    const Output y(expected.size());
    args.y = y.data();
    launch(args, nullptr);
    check(same_rows(y.read(), expected),
          std::string("int8 ") + kernel + " " + name_of(y_dtype) + " m=" + std::to_string(m) +
              " n=" + std::to_string(n) + " k=" + std::to_string(k) + " bias=" + std::to_string(with_bias) +
              " gap=" + std::to_string(gap));
  };
  run("auto", h3s::cuda::linear_int8);
  if (m * n * k < 20'000'000) run("plain", h3s::cuda::linear_int8_plain);
  if (k % 16 != 0) return;
  if (capability / 10 == 9) run("sm90", h3s::cuda::linear_int8_sm90);
  run("mma", h3s::cuda::linear_int8_mma);
}

// ---- fp32 order ----

// Rows of numbers with poison between them.
Bytes held_rows(std::int64_t m, std::int64_t n, std::int64_t gap, DType dtype) {
  const Bytes numbers = normal(m * n, dtype);
  Bytes rows((m * (n + gap) - gap) * size_of(dtype), kPoison);
  for (std::int64_t i = 0; i < m; ++i)
    std::memcpy(&rows[i * (n + gap) * size_of(dtype)], &numbers[i * n * size_of(dtype)], n * size_of(dtype));
  return rows;
}

void test_fma(std::int64_t m, std::int64_t n, std::int64_t k, DType x_dtype, DType w_dtype, DType y_dtype,
              bool add = false) {
  const std::int64_t x_gap = 4 * (m % 3), y_gap = m % 2;
  const bool with_bias = n % 2 == 0;
  const Bytes x = normal(m * (k + x_gap) - x_gap, x_dtype), w = normal(n * k, w_dtype),
              bias = normal(n, DType::kF32);
  const Device dx(x), dw(w), db(bias);
  LinearArgs args;
  args.x = x.data(), args.x_dtype = x_dtype, args.x_stride = k + x_gap;
  args.w = w.data(), args.w_dtype = w_dtype;
  args.bias = with_bias ? reinterpret_cast<const float*>(bias.data()) : nullptr;
  args.y_dtype = y_dtype, args.y_stride = n + y_gap;
  args.m = m, args.n = n, args.k = k;
  args.add = add;
  Bytes expected((m * args.y_stride - y_gap) * size_of(y_dtype), kPoison);
  if (add) expected = held_rows(m, n, y_gap, y_dtype);
  Output y(expected.size());
  if (add) y.hold(expected);
  args.y = expected.data();
  h3s::cpu::linear_definition(args);
  args.x = dx.as<void>(), args.w = dw.as<void>(), args.bias = with_bias ? db.as<float>() : nullptr,
  args.y = y.data();
  h3s::cuda::linear_fma(args, nullptr);
  check(same_rows(y.read(), expected), std::string("fma x ") + name_of(x_dtype) + " w " + name_of(w_dtype) +
                                           " y " + name_of(y_dtype) + " m=" + std::to_string(m) +
                                           " n=" + std::to_string(n) + " k=" + std::to_string(k) +
                                           (add ? " add" : ""));
}

// ---- tensor cores, floating point ----

// |y - exact| <= roundings of the output + k eps (|x| . |w|): any order of fp32 additions stays within it.
void test_tensor(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, DType y_dtype,
                 bool add = false) {
  const std::int64_t x_gap = 8 * (m % 3), y_gap = m % 2;
  const bool with_bias = n % 2 == 0;
  const Bytes x = normal(m * (k + x_gap) - x_gap, dtype), w = normal(n * k, dtype),
              bias = normal(n, DType::kF32);
  const Device dx(x), dw(w), db(bias);
  LinearArgs args;
  args.x = dx.as<void>(), args.x_dtype = dtype, args.x_stride = k + x_gap;
  args.w = dw.as<void>(), args.w_dtype = dtype;
  args.bias = with_bias ? db.as<float>() : nullptr;
  args.y_dtype = y_dtype, args.y_stride = n + y_gap;
  args.m = m, args.n = n, args.k = k;
  args.add = add;
  const std::size_t bytes = (m * args.y_stride - y_gap) * size_of(y_dtype);
  const Bytes held = held_rows(m, n, y_gap, y_dtype);
  const double output_eps = y_dtype == DType::kF32 ? 0x1p-23 : y_dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
  for (int kernel = 0; kernel < 2; ++kernel) {
    if ((kernel == 0 && capability / 10 != 9) || (dtype == DType::kBF16 && capability < 80)) continue;
    Output y(bytes);
    if (add) y.hold(held);
    args.y = y.data();
    (kernel == 0 ? h3s::cuda::linear_sm90 : h3s::cuda::linear_mma)(args, nullptr);
    const Bytes got = y.read();
    double worst = got.empty() ? 1e9 : 0;
    for (std::int64_t i = 0; i < m && !got.empty(); ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double exact = 0, magnitude = 0;
        for (std::int64_t c = 0; c < k; ++c) {
          const double product = double{get(x, i * args.x_stride + c, dtype)} * get(w, j * k + c, dtype);
          exact += product, magnitude += std::fabs(product);
        }
        if (with_bias) exact += get(bias, j, DType::kF32);
        if (add) {
          exact += get(held, i * args.y_stride + j, y_dtype);
          magnitude += std::fabs(get(held, i * args.y_stride + j, y_dtype));
        }
        const double bound =
            output_eps * std::fabs(exact) + static_cast<double>(k + 2) * 0x1p-23 * (magnitude + 4);
        const double error = std::fabs(get(got, i * args.y_stride + j, y_dtype) - exact) / bound;
        worst = error <= worst ? worst : std::isnan(error) ? 1e9 : error;
      }
    for (std::int64_t i = 0; i + 1 < m && y_gap != 0 && !got.empty(); ++i)
      for (std::size_t b = 0; b < y_gap * size_of(y_dtype); ++b)
        if (got[(i * args.y_stride + n) * size_of(y_dtype) + b] != kPoison) worst = 1e9;
    check(worst <= 1, std::string(kernel == 0 ? "sm90 " : "mma ") + name_of(dtype) + " y " +
                          name_of(y_dtype) + " m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" +
                          std::to_string(k) + (add ? " add" : "") + " error/bound=" + std::to_string(worst));
  }
}

// linear_add has the bits of linear_mma, which test_tensor checks.
void test_added(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  if (capability < 80) return;
  const std::int64_t x_gap = 8 * (m % 3), y_gap = 8 * (n % 3);
  const Device x(normal(m * (k + x_gap) - x_gap, dtype)), w(normal(n * k, dtype));
  LinearArgs args;
  args.x = x.as<void>(), args.x_dtype = dtype, args.x_stride = k + x_gap;
  args.w = w.as<void>(), args.w_dtype = dtype;
  args.y_dtype = dtype, args.y_stride = n + y_gap;
  args.m = m, args.n = n, args.k = k;
  args.add = true;
  const Bytes held = held_rows(m, n, y_gap, dtype);
  const auto result = [&](auto kernel) {
    Output y(held.size());
    y.hold(held);
    args.y = y.data();
    kernel(args, nullptr);
    return y.read();
  };
  const std::string name = std::string("added ") + name_of(dtype) + " m=" + std::to_string(m) +
                           " n=" + std::to_string(n) + " k=" + std::to_string(k);
  args.y = nullptr;  // on 16 bytes as every output here
  check(h3s::cuda::takes_linear_add(args), name + " is taken");
  const Bytes got = result(h3s::cuda::linear_add);
  check(!got.empty() && got == result(h3s::cuda::linear_mma), name + " equals mma");
}

// ---- quantisers ----

// Rows of every kind that the contract distinguishes.
Bytes odd_rows(std::int64_t m, std::int64_t columns, DType dtype) {
  std::normal_distribution<float> draw;
  Bytes bytes(m * columns * size_of(dtype));
  for (std::int64_t r = 0; r < m; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      float v = draw(generator);
      switch (r % 10) {
        case 1:
          v = 0;
          break;
        case 2:
          v *= 1e-33f;
          break;  // below the smallest scale
        case 3:
          v *= 1e37f;
          break;  // past the fast route's range
        case 4:
          v = c == 7 ? 200.0f : v;
          break;  // one outlier
        case 5:
          v = static_cast<float>(c % 255) - 127.0f;
          break;  // ties
        case 6:
          v *= 30.0f;
          break;  // gates far below -60
        case 7:
          v = v > 0 ? 3.4e38f : -3.4e38f;
          break;  // sums overflow
        case 8:
          v *= std::ldexp(1.0f, -static_cast<int>(c % 140));
          break;  // down to subnormals
        default:
          break;
      }
      put(bytes, r * columns + c, v, dtype);
    }
  return bytes;
}

void compare_codes(const Output& codes_out, const Output& scale_out, const Bytes& expected_codes,
                   const Bytes& expected_scale, const std::string& name) {
  const Bytes got = codes_out.read(), scale = scale_out.read();
  std::string detail;
  for (std::size_t i = 0; i < got.size() && detail.empty(); ++i)
    if (got[i] != expected_codes[i])
      detail = " first code " + std::to_string(i) + ": " + std::to_string(static_cast<std::int8_t>(got[i])) +
               " not " + std::to_string(static_cast<std::int8_t>(expected_codes[i]));
  check(same_rows(got, expected_codes), name + " codes" + detail);
  check(same_rows(scale, expected_scale), name + " scale");
}

void test_quantize(std::int64_t m, std::int64_t k, std::int64_t group, DType dtype, std::int64_t gap) {
  const std::int64_t stride = k + gap;
  const Bytes x = odd_rows(m, stride, dtype);
  Bytes expected_codes(m * k), expected_scale(m * 4);
  QuantizeRowsArgs args;
  args.x = x.data(), args.x_dtype = dtype, args.x_stride = stride, args.rotate_group = group;
  args.codes = reinterpret_cast<std::int8_t*>(expected_codes.data());
  args.scale = reinterpret_cast<float*>(expected_scale.data());
  args.m = m, args.k = k;
  h3s::cpu::quantize_rows_definition(args);
  const Device dx(x);
  const Output codes_out(m * k), scale_out(m * 4);
  args.x = dx.as<void>(), args.codes = reinterpret_cast<std::int8_t*>(codes_out.data());
  args.scale = reinterpret_cast<float*>(scale_out.data());
  h3s::cuda::quantize_rows(args, nullptr);
  compare_codes(codes_out, scale_out, expected_codes, expected_scale,
                std::string("quantize ") + name_of(dtype) + " m=" + std::to_string(m) + " k=" +
                    std::to_string(k) + " group=" + std::to_string(group) + " gap=" + std::to_string(gap));
}

void test_swiglu(std::int64_t m, std::int64_t k, std::int64_t group, DType dtype) {
  const Bytes x = odd_rows(m, 2 * k, dtype);
  Bytes expected_codes(m * k), expected_scale(m * 4);
  SwigluQuantizeRowsArgs args;
  args.gate_up = x.data(), args.dtype = dtype, args.rotate_group = group;
  args.codes = reinterpret_cast<std::int8_t*>(expected_codes.data());
  args.scale = reinterpret_cast<float*>(expected_scale.data());
  args.m = m, args.k = k;
  h3s::cpu::swiglu_quantize_rows_definition(args);
  const Device dx(x);
  const Output codes_out(m * k), scale_out(m * 4);
  args.gate_up = dx.as<void>(), args.codes = reinterpret_cast<std::int8_t*>(codes_out.data());
  args.scale = reinterpret_cast<float*>(scale_out.data());
  h3s::cuda::swiglu_quantize_rows(args, nullptr);
  compare_codes(codes_out, scale_out, expected_codes, expected_scale,
                std::string("swiglu ") + name_of(dtype) + " m=" + std::to_string(m) +
                    " k=" + std::to_string(k) + " group=" + std::to_string(group));
}

void run_all(bool small) {
  const DType f32 = DType::kF32, bf16 = DType::kBF16, f16 = DType::kF16;
  test_int8(1, 8, 16, bf16, true, 0);
  test_int8(33, 96, 48, f32, true, 0);
  test_int8(129, 130, 272, bf16, false, 3);
  test_int8(31, 37, 37, bf16, true, 0);
  test_int8(65, 129, 2688, f32, false, 1);
  if (!small) {
    test_int8(300, 520, 1024, bf16, true, 0);
    test_int8(130, 260, 14336, bf16, false, 0);
    test_int8(513, 128, 512, bf16, true, 8);
    test_int8(4099, 264, 64, bf16, false, 0);
    test_int8(64, 5376, 256, bf16, false, 0);
  }
  for (const DType x : {f32, bf16})
    for (const DType w : {f32, bf16, f16})
      for (const DType y : {f32, bf16}) {
        test_fma(1, 40, 8, x, w, y);
        test_fma(3, 70, 300, x, w, y);
        test_fma(131, 33, 96, x, w, y);
        test_fma(33, 257, 33, x, w, y);
        test_fma(3, 70, 48, x, w, y, /*add=*/true);
        test_fma(131, 33, 16, x, w, y, /*add=*/true);
        if (small) continue;
        test_fma(4, 330, 2688, x, w, y);
        test_fma(2, 64, 5376, x, w, y);
        test_fma(259, 96, 1000, x, w, y);
        test_fma(200, 300, 520, x, w, y);
      }
  for (const DType t : {bf16, f16})
    for (const DType y : {f32, t}) {
      test_tensor(1, 8, 8, t, y);
      test_tensor(33, 130, 72, t, y);
      for (const std::int64_t k : {16, 128, 384}) {
        test_tensor(33, 130, k, t, y, /*add=*/true);
        test_tensor(150, 520, k, t, y, /*add=*/true);
        test_tensor(64, 77, k, t, y, /*add=*/true);
      }
      if (y == t)
        for (const std::int64_t k : {8, 16, 40, 96, 128}) {
          test_added(1, 8, k, t);
          test_added(63, 120, k, t);
          test_added(65, 136, k, t);
          if (small) continue;
          test_added(1023, 128, k, t);
          test_added(1025, 520, k, t);
          test_added(2100, 1024, k, t);
        }
      if (small) continue;
      test_tensor(129, 257, 1024, t, y);
      test_tensor(300, 128, 200, t, y);
      test_tensor(65, 520, 2688, t, y);
    }
  for (const DType t : {bf16, f32}) {
    for (const std::int64_t group : {0, 4, 16, 64, 256}) {
      test_quantize(11, 256, group, t, 0);
      test_swiglu(11, 256, group, t);
      if (small) continue;
      test_quantize(41, 5376, group, t, 8);
      test_quantize(20, 14336, group, t, 0);
      test_swiglu(31, 14336, group, t);
      test_swiglu(10, 5376, group, t);
    }
    test_quantize(10, 2688, 64, t, 0);
    test_quantize(10, 2048, 1024, t, 0);
    test_quantize(10, 100, 4, t, 3);
    test_quantize(10, 37, 0, t, 0);
    test_quantize(10, 48, 16, t, 1);
    test_swiglu(10, 37, 0, t);
    test_swiglu(10, 1024, 1024, t);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no CUDA device\n");
    return 77;
  }
  cudaDeviceProp device;
  H3S_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  capability = 10 * device.major + device.minor;
  run_all(argc > 1 && std::strcmp(argv[1], "small") == 0);
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
