// Linear layers with bf16 weights, float arithmetic, against OpenBLAS sgemm on the same values as floats.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "comparators.h"
#include "context.h"
#include "peak.h"
#include "shapes.h"

namespace h3s::bench {
namespace {

struct Layer {
  Layer(std::int64_t m_, std::int64_t n_, std::int64_t k_)
      : m(m_),
        n(n_),
        k(k_),
        x(random_floats(m * k, 1)),
        w(random_floats(n * k, 2)),
        x16(to_bf16(x)),
        w16(to_bf16(w)),
        y(static_cast<std::size_t>(m * n)),
        y_blas(y.size()),
        y16(y.size()) {
    const auto widen = [](BF16 v) { return to_float(v); };
    std::transform(x16.begin(), x16.end(), x.begin(), widen);
    std::transform(w16.begin(), w16.end(), w.begin(), widen);
  }

  kernels::LinearArgs args(void* out, DType dtype) const {
    return {x16.data(), DType::kBF16, k, w16.data(), DType::kBF16, nullptr, out, dtype, n, m, n, k};
  }

  std::int64_t m, n, k;
  std::vector<float> x, w;
  std::vector<BF16> x16, w16;
  std::vector<float> y, y_blas;
  std::vector<BF16> y16;
};

// The last row's last columns against the definition, bit for bit.
bool equals_definition(Context& context, const Layer& layer) {
  const std::int64_t cols = std::min<std::int64_t>(64, layer.n), first = layer.n - cols, row = layer.m - 1;
  std::vector<float> want(static_cast<std::size_t>(cols));
  kernels::LinearArgs args = layer.args(want.data(), DType::kF32);
  args.x = layer.x16.data() + row * layer.k;
  args.w = layer.w16.data() + first * layer.k;
  args.m = 1;
  args.n = cols;
  context.definition().linear(args);
  return std::memcmp(want.data(), layer.y.data() + row * layer.n + first, want.size() * sizeof(float)) == 0;
}

// Both sum K products of standard normal values in float: relative RMS below sqrt(K) 2^-24, and some.
bool near(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return error <= 1e-10 * norm;
}

void bench_layer(Context& context, const LayerShape& shape, std::int64_t m) {
  Layer layer(m, shape.n, shape.k);
  context.backend().linear(layer.args(layer.y.data(), DType::kF32));
  check(equals_definition(context, layer), "linear equals its definition");
  const auto sgemm = [&] {
    openblas::sgemm(layer.x.data(), layer.w.data(), layer.y_blas.data(), layer.m, layer.n, layer.k);
  };
  if (openblas::available()) {
    sgemm();
    check(near(layer.y, layer.y_blas), "linear is near sgemm");
  }
  const double work =
      2.0 * static_cast<double>(m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  const kernels::LinearArgs timed = layer.args(layer.y16.data(), DType::kBF16);
  context.measure(
      {"linear", shape.name, fmt::format("M {} N {} K {}", m, shape.n, shape.k), work, "GFLOP/s",
       "OpenBLAS sgemm", work, target_ratio(m)},
      [&] { context.backend().linear(timed); },
      openblas::available() ? std::function<void()>(sgemm) : nullptr);
}

}  // namespace

void bench_linear(Context& context) {
  constexpr std::int64_t kIterations = 20'000'000;
  context.add_rate("linear", "peak of one core (registers only)", run_float_peak(kIterations), "GFLOP/s",
                   [] { run_float_peak(kIterations); });
  for (const std::int64_t m : context.options().m)
    for (const LayerShape& shape : kBlockLayers) bench_layer(context, shape, m);
}

}  // namespace h3s::bench
