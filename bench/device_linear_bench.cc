// Linear layers of a block on a GPU: bf16 and float32, int8 with and without the quantiser before it.
#include <fmt/format.h>

#include <cmath>

#include "op_case.h"

namespace h3s::bench {
namespace {

using Role = Operand::Role;

constexpr std::int64_t kRotateGroup = 256;

struct Layer {
  const char* name;
  std::int64_t n, k;
  bool swiglu = false;  // its input is [gate | up]
};
constexpr Layer kBlock[] = {
    {"qkv_proj", 21504, 5376}, {"out_proj", 5376, 7168}, {"fc1", 28672, 5376}, {"fc2", 5376, 14336, true}};
constexpr Layer kFloat32[] = {
    {"video head, f32", 96, 5376}, {"audio head, f32", 32, 5376}, {"video patches, f32", 5376, 96}};

Row row_of(const char* group, const std::string& name, const Layer& layer, std::int64_t m) {
  const double work =
      2.0 * static_cast<double>(m) * static_cast<double>(layer.n) * static_cast<double>(layer.k);
  return {group, name, fmt::format("M {} N {} K {}", m, layer.n, layer.k), work, "GFLOP/s", "", 0, 0};
}

OpCase float_case(const Layer& layer, std::int64_t m, DType dtype) {
  const auto bytes = static_cast<std::int64_t>(dtype_size(dtype));
  const Fill fill = dtype == DType::kF32 ? Fill::kF32 : Fill::kBf16;
  OpCase c{row_of("linear", layer.name, layer, m), m};
  c.operands = {{Role::kInput, layer.k * bytes, fill},
                {Role::kShared, layer.n * layer.k * bytes, fill},
                {Role::kOutput, layer.n * bytes, fill}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.linear(
        {p[0], dtype, layer.k, p[1], dtype, nullptr, p[2], dtype, layer.n, rows, layer.n, layer.k});
  };
  // Tensor cores add in another order: both results are the sum rounded to bf16, each off by at most 2^-9.
  c.tolerance = dtype == DType::kF32 ? 0 : 0x1p-8;
  return c;
}

OpCase int8_case(const Layer& layer, std::int64_t m) {
  OpCase c{row_of("int8", layer.name, layer, m), m};
  c.row.unit = "GOP/s";
  c.operands = {{Role::kInput, layer.k, Fill::kCodes},
                {Role::kInput, 4, Fill::kF32},
                {Role::kShared, layer.n * layer.k, Fill::kCodes},
                {Role::kShared, layer.n * 4, Fill::kF32},
                {Role::kOutput, layer.n * 2, Fill::kBf16}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.linear_int8({static_cast<std::int8_t*>(p[0]), static_cast<float*>(p[1]),
                         static_cast<std::int8_t*>(p[2]), static_cast<float*>(p[3]), nullptr, p[4],
                         DType::kBF16, layer.n, rows, layer.n, layer.k});
  };
  return c;
}

void quantize(kernels::Backend& backend, const Layer& layer, const void* x, std::int8_t* codes, float* scale,
              std::int64_t rows) {
  if (layer.swiglu)
    backend.swiglu_quantize_rows({x, DType::kBF16, kRotateGroup, codes, scale, rows, layer.k});
  else
    backend.quantize_rows({x, DType::kBF16, layer.k, kRotateGroup, codes, scale, rows, layer.k});
}

OpCase quantized_case(const Layer& layer, std::int64_t m) {
  OpCase c = int8_case(layer, m);
  c.row.name = std::string(layer.name) + (layer.swiglu ? " with swiglu and quantiser" : " with quantiser");
  c.operands[0].role = c.operands[1].role = Role::kOutput;
  c.operands.push_back({Role::kInput, layer.k * (layer.swiglu ? 4 : 2), Fill::kBf16});
  const auto product = c.run;
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    quantize(backend, layer, p[5], static_cast<std::int8_t*>(p[0]), static_cast<float*>(p[1]), rows);
    product(backend, p, rows);
  };
  return c;
}

}  // namespace

void bench_device_linear(Context& context) {
  for (const std::int64_t m : context.options().m) {
    for (const Layer& layer : kBlock) run_case(context, float_case(layer, m, DType::kBF16));
    for (const Layer& layer : kFloat32) run_case(context, float_case(layer, m, DType::kF32));
  }
}

void bench_device_int8(Context& context) {
  for (const std::int64_t m : context.options().m)
    for (const Layer& layer : kBlock) {
      run_case(context, int8_case(layer, m));
      run_case(context, quantized_case(layer, m));
    }
}

}  // namespace h3s::bench
