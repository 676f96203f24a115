#include "reference/portable_linears.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "base/float16.h"

namespace h3s::reference {
namespace {

double bf(double v) {
  return to_float(to_bf16(static_cast<float>(v)));
}

// A tiny float by its definition: exponent bits, mantissa bits, bias; no codes that are no numbers.
double small_float(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned magnitude = code & ((1u << (exponent_bits + mantissa_bits)) - 1);
  const double sign = code >> (exponent_bits + mantissa_bits) & 1u ? -1 : 1;
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  const double mantissa = (magnitude & ((1u << mantissa_bits) - 1)) / std::ldexp(1.0, mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias)
                       : sign * std::ldexp(1 + mantissa, exponent - bias);
}
double e4m3(unsigned code) {
  return small_float(code, 4, 3, 7);
}
double e2m1(unsigned code) {
  return small_float(code, 2, 1, 1);
}

// The nearest number of a table in ascending order of magnitude, ties to the even code.
template <std::size_t N>
double nearest(const std::array<double, N>& numbers, double v) {
  const double a = std::abs(v);
  std::size_t best = 0;
  for (std::size_t i = 1; i < N; ++i) {
    const double closer = std::abs(a - numbers[best]) - std::abs(a - numbers[i]);
    if (closer > 0 || (closer == 0 && i % 2 == 0)) best = i;
  }
  return std::copysign(numbers[best], v);
}
double round_e4m3(double v) {
  static const auto numbers = [] {
    std::array<double, 127> n;
    for (unsigned i = 0; i < n.size(); ++i) n[i] = e4m3(i);
    return n;
  }();
  return nearest(numbers, v);
}
double round_e2m1(double v) {
  static constexpr std::array<double, 8> kNumbers{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return nearest(kNumbers, v);
}

class Layer {
 public:
  Layer(const io::SafetensorsReader& file, const std::string& layer) : file_(file), name_("w." + layer) {}

  unsigned byte(const char* suffix, std::int64_t idx) const {
    return std::to_integer<unsigned>(file_.data(file_.at(name_ + suffix))[idx]);
  }
  float number(const char* suffix, std::int64_t idx) const {
    float v;
    std::memcpy(&v, file_.data(file_.at(name_ + suffix)) + idx * 4, 4);
    return v;
  }
  // Scale (row, column) of swizzled block scales.
  unsigned block(std::int64_t r, std::int64_t c) const {
    const std::int64_t columns = file_.at(name_ + ".weight_scale").shape[1] / 4;
    return byte(".weight_scale", (r / 128 * columns + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4);
  }

 private:
  const io::SafetensorsReader& file_;
  std::string name_;
};

Matrix rounded(Matrix m) {
  for (double& v : m.values) v = bf(v);
  return m;
}

// w[n][k] = value(n, k)
template <typename Value>
Matrix filled(std::int64_t rows, std::int64_t cols, Value value) {
  Matrix m(rows, cols);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) m.row(r)[c] = value(r, c);
  return m;
}

double largest(const double* row, std::int64_t count) {
  double most = 0;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(row[i]));
  return most;
}

// fp8 under one scale each; the input's is 1.
Matrix float8(const Matrix& x, const Layer& layer, std::int64_t n) {
  const double scale = bf(layer.number(".weight_scale", 0));
  const Matrix w = filled(n, x.cols, [&](std::int64_t r, std::int64_t c) {
    return bf(e4m3(layer.byte(".weight", r * x.cols + c)) * scale);
  });
  Matrix q = x;
  for (double& v : q.values) v = round_e4m3(v);
  return rounded(transposed_product(q, w));
}

Matrix mxfp8(const Matrix& x, const Layer& layer, std::int64_t n) {
  const Matrix w = filled(n, x.cols, [&](std::int64_t r, std::int64_t c) {
    return e4m3(layer.byte(".weight", r * x.cols + c)) *
           std::ldexp(1.0, static_cast<int>(layer.block(r, c / 32)) - 127);
  });
  Matrix q = x;
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t b = 0; b < x.cols; b += 32) {
      const double most = largest(x.row(r) + b, 32);
      const int e = most == 0 ? -127 : static_cast<int>(std::ceil(std::log2(most / 448)));
      for (std::int64_t c = b; c < b + 32; ++c)
        q.row(r)[c] = std::ldexp(round_e4m3(std::ldexp(x.row(r)[c], -e)), e);
    }
  return rounded(transposed_product(q, w));
}

Matrix nvfp4(const Matrix& x, const Layer& layer, std::int64_t n) {
  const double g_w = bf(layer.number(".weight_scale_2", 0));
  const Matrix w = filled(n, x.cols, [&](std::int64_t r, std::int64_t c) {
    const unsigned byte = layer.byte(".weight", (r * x.cols + c) / 2);
    return bf(e2m1(c % 2 == 0 ? byte >> 4 : byte & 15u) * bf(g_w * e4m3(layer.block(r, c / 16))));
  });
  const auto g =
      static_cast<float>(bf(static_cast<float>(largest(x.values.data(), x.rows * x.cols)) / 2688.0f));
  Matrix q = x;
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t b = 0; b < x.cols; b += 16) {
      const auto most = static_cast<float>(largest(x.row(r) + b, 16));
      const auto scale = static_cast<float>(round_e4m3(std::min(most / 6.0f / g, 448.0f)));
      for (std::int64_t c = b; c < b + 16; ++c)
        q.row(r)[c] =
            scale == 0 ? 0 : bf(round_e2m1(static_cast<float>(x.row(r)[c]) / (g * scale)) * bf(g * scale));
    }
  return rounded(transposed_product(q, w));
}

Matrix w4a8(const Matrix& x, const Layer& layer, std::int64_t n) {
  const Matrix w = filled(n, x.cols, [&](std::int64_t r, std::int64_t c) {
    const unsigned byte = layer.byte(".weight", (r * x.cols + c) / 2);
    const float level = layer.number(".weight_codebook", c % 2 == 0 ? byte & 15u : byte >> 4);
    const auto relative = static_cast<float>(e4m3(layer.byte(".weight_s_rel", r * (x.cols / 16) + c / 16)));
    return std::clamp<double>(std::nearbyint(level * relative), -127, 127);
  });
  const RotatedRows rows = portable_int8_rows(x);
  Matrix y = transposed_product(rows.codes, w);
  for (std::int64_t r = 0; r < y.rows; ++r)
    for (std::int64_t c = 0; c < n; ++c)
      y.row(r)[c] = bf(static_cast<float>(y.row(r)[c]) *
                       (rows.scales[static_cast<std::size_t>(r)] * layer.number(".weight_s_channel", c)));
  return y;
}

Matrix w4a4(const Matrix& x, const Layer& layer, std::int64_t n) {
  const Matrix w = filled(n, x.cols, [&](std::int64_t r, std::int64_t c) {
    const unsigned byte = layer.byte(".weight", (r * x.cols + c) / 2);
    const int nibble = static_cast<int>(c % 2 == 0 ? byte & 15u : byte >> 4);
    return nibble < 8 ? nibble : nibble - 16;
  });
  Matrix q = rotated_rows(x);
  std::vector<double> scales;
  for (std::int64_t r = 0; r < q.rows; ++r) {
    const double scale = bf(static_cast<float>(std::max(largest(q.row(r), q.cols), bf(1e-10))) / 7.0f);
    for (std::int64_t c = 0; c < q.cols; ++c)
      q.row(r)[c] = std::clamp(
          std::nearbyint(bf(static_cast<float>(q.row(r)[c]) / static_cast<float>(scale))), -7.0, 7.0);
    scales.push_back(scale);
  }
  Matrix y = transposed_product(q, w);
  for (std::int64_t r = 0; r < y.rows; ++r)
    for (std::int64_t c = 0; c < n; ++c)
      y.row(r)[c] = bf(bf(bf(y.row(r)[c]) * scales[static_cast<std::size_t>(r)]) *
                       bf(layer.number(".weight_scale", c)));
  return y;
}

}  // namespace

BlockLinear portable_linears(const io::SafetensorsReader& file, const std::string& format) {
  const auto with = [&file](Matrix (*linear)(const Matrix&, const Layer&, std::int64_t)) -> BlockLinear {
    return [&file, linear](const Matrix& x, const std::string& layer, std::int64_t n) {
      return linear(x, Layer(file, layer), n);
    };
  };
  if (format == "float8_e4m3fn") return with(float8);
  if (format == "mxfp8") return with(mxfp8);
  if (format == "nvfp4") return with(nvfp4);
  if (format == "asym_w4a8_int8") return with(w4a8);
  if (format == "convrot_w4a4") return with(w4a4);
  throw std::invalid_argument("no portable form of " + format);
}

}  // namespace h3s::reference
