// int8 linear layers against oneDNN's u8 x s8 -> s32 matmul. oneDNN's weights are reordered before the timing
// and its result is not scaled or rounded; ours are packed, scaled and rounded inside it.
#include <fmt/format.h>

#include <algorithm>

#include "comparators.h"
#include "context.h"
#include "peak.h"
#include "shapes.h"

namespace h3s::bench {
namespace {

// Codes of x in [0, 127], so that they mean the same signed and unsigned.
struct Int8Layer {
  Int8Layer(std::int64_t m_, std::int64_t n_, std::int64_t k_)
      : m(m_),
        n(n_),
        k(k_),
        x(random_codes(m * k, 1, 0, 127)),
        w(random_codes(n * k, 2, -128, 127)),
        ones(static_cast<std::size_t>(std::max(m, n)), 1.0f),
        y(static_cast<std::size_t>(m * n)),
        y16(y.size()),
        y_dnn(y.size()) {}

  kernels::LinearInt8Args args(void* out, DType dtype) const {
    return {x.data(), ones.data(), w.data(), ones.data(), nullptr, out, dtype, n, m, n, k};
  }
  const std::uint8_t* unsigned_x() const { return reinterpret_cast<const std::uint8_t*>(x.data()); }

  std::int64_t m, n, k;
  std::vector<std::int8_t> x, w;
  std::vector<float> ones, y;
  std::vector<BF16> y16;
  std::vector<std::int32_t> y_dnn;
};

bool same_sums(const Int8Layer& layer) {
  return std::equal(layer.y.begin(), layer.y.end(), layer.y_dnn.begin(),
                    [](float a, std::int32_t b) { return a == static_cast<float>(b); });
}

void bench_layer(Context& context, const LayerShape& shape, std::int64_t m) {
  Int8Layer layer(m, shape.n, shape.k);
  const double work =
      2.0 * static_cast<double>(m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  Row row{"int8", shape.name,     fmt::format("M {} N {} K {}", m, shape.n, shape.k), work, "GOP/s", "",
          work,   target_ratio(m)};
  const kernels::LinearInt8Args timed = layer.args(layer.y16.data(), DType::kBF16);
  const auto ours = [&] { context.backend().linear_int8(timed); };
  if (!onednn::available()) return context.measure(row, ours, nullptr);

  onednn::Int8Matmul matmul(layer.unsigned_x(), layer.w.data(), layer.y_dnn.data(), m, shape.n, shape.k,
                            context.num_threads());
  row.comparator = "oneDNN " + matmul.implementation();
  matmul.run();
  context.backend().linear_int8(layer.args(layer.y.data(), DType::kF32));
  check(same_sums(layer), "linear_int8 equals the sums of oneDNN");
  context.measure(row, ours, [&] { matmul.run(); });
}

}  // namespace

void bench_int8(Context& context) {
  constexpr std::int64_t kIterations = 20'000'000;
  if (const double work = run_int8_peak(kIterations); work > 0)
    context.add_rate("int8", "peak of one core (registers only)", work, "GOP/s",
                     [] { run_int8_peak(kIterations); });
  for (const std::int64_t m : context.options().m)
    for (const LayerShape& shape : kBlockLayers) bench_layer(context, shape, m);
}

}  // namespace h3s::bench
