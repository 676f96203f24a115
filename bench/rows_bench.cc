// Row operations at the model's widths against memcpy on the same threads, in bytes moved (read + written).
#include <fmt/format.h>

#include <cstring>

#include "backend/cpu/thread_pool.h"
#include "context.h"
#include "kernels/row_ops.h"

namespace h3s::bench {
namespace {

constexpr std::int64_t kRows = 4096, kWidth = 5376, kHeads = 56, kF = 14336;
constexpr double kBf16 = sizeof(BF16);

// Copies `bytes` of one buffer to another, a piece on each thread.
class Memcpy {
 public:
  Memcpy(std::int64_t bytes, int num_threads)
      : src_(static_cast<std::size_t>(bytes)), dst_(src_.size()), pool_(num_threads) {}

  void run() {
    const std::int64_t pieces = pool_.num_threads();
    const auto bytes = static_cast<std::int64_t>(src_.size());
    pool_.parallel_for(pieces, [&](std::int64_t idx, int) {
      const std::int64_t begin = bytes * idx / pieces, end = bytes * (idx + 1) / pieces;
      std::memcpy(dst_.data() + begin, src_.data() + begin, static_cast<std::size_t>(end - begin));
    });
  }
  double work() const { return 2.0 * static_cast<double>(src_.size()); }

 private:
  std::vector<char> src_, dst_;
  cpu::ThreadPool pool_;
};

class RowBench {
 public:
  explicit RowBench(Context& context)
      : context_(context), memcpy_(kRows * kWidth * 2, context.num_threads()) {}

  void rms_norm() {
    kernels::RmsNormArgs args;
    args.x = x_.data(), args.x_stride = args.c = kWidth, args.weight = weight_.data(), args.y = y_.data();
    args.m = kRows;
    time("rms_norm", kWidth, 2 * kBf16 * kWidth, [&] { context_.backend().rms_norm(args); });
    args.modulate = true;
    args.modulation = modulation();
    args.shift_offset = 0, args.gain_offset = kWidth;
    time("rms_norm, modulated", kWidth, 2 * kBf16 * kWidth, [&] { context_.backend().rms_norm(args); });
  }

  void gated_residual() {
    kernels::GatedResidualArgs args{y_.data(), x_.data(), DType::kBF16, kRows,
                                    kWidth,    true,      modulation(), 2 * kWidth};
    time("gated_residual", kWidth, 3 * kBf16 * kWidth, [&] { context_.backend().gated_residual(args); });
  }

  void swiglu() {
    constexpr std::int64_t kFewer = kRows / 4;
    const std::vector<BF16> gate_up = to_bf16(random_floats(kFewer * 2 * kF, 5));
    std::vector<BF16> out(static_cast<std::size_t>(kFewer * kF));
    std::vector<std::int8_t> codes(out.size());
    std::vector<float> scale(kFewer);
    time(
        "swiglu", kF, 3 * kBf16 * kF,
        [&] {
          context_.backend().swiglu({gate_up.data(), out.data(), DType::kBF16, kFewer, kF});
        },
        kFewer);
    time(
        "swiglu_quantize_rows, rotated", kF, 2 * kBf16 * kF + kF,
        [&] {
          context_.backend().swiglu_quantize_rows(
              {gate_up.data(), DType::kBF16, 256, codes.data(), scale.data(), kFewer, kF});
        },
        kFewer);
  }

  void quantize() {
    std::vector<std::int8_t> codes(x_.size());
    std::vector<float> scale(kRows);
    for (const std::int64_t group : {0, 256})
      time(group == 0 ? "quantize_rows" : "quantize_rows, rotated", kWidth, (kBf16 + 1) * kWidth, [&] {
        context_.backend().quantize_rows(
            {x_.data(), DType::kBF16, kWidth, group, codes.data(), scale.data(), kRows, kWidth});
      });
  }

  void qkv() {
    constexpr std::int64_t kFewer = kRows / 4, kSize = kFewer * kHeads * kernels::kHeadDim;
    const std::vector<BF16> src = to_bf16(random_floats(3 * kSize, 6)),
                            rope = to_bf16(random_floats(kFewer * 96, 7));
    std::vector<BF16> dst(static_cast<std::size_t>(3 * kSize));
    kernels::QkvArgs args;
    constexpr std::int64_t kPart = kHeads * kernels::kHeadDim, kHeadStride = kFewer * kernels::kHeadDim;
    args.q = {src.data(), dst.data(), kHeadStride};
    args.k = {src.data() + kPart, dst.data() + kSize, kHeadStride};
    args.v = {src.data() + 2 * kPart, dst.data() + 2 * kSize, kHeadStride};
    args.src_stride = 3 * kPart, args.q_weight = args.k_weight = weight_.data(), args.rope = rope.data();
    args.m = kFewer, args.heads = kHeads;
    time(
        "qkv_norm_rope", 3 * kPart, 2 * kBf16 * 3 * kPart, [&] { context_.backend().qkv_norm_rope(args); },
        kFewer);
  }

 private:
  void time(const std::string& name, std::int64_t width, double bytes_per_row,
            const std::function<void()>& fn, std::int64_t rows = kRows) {
    context_.measure({"rows", name, fmt::format("rows {} width {}", rows, width),
                      bytes_per_row * static_cast<double>(rows), "GB/s", "memcpy", memcpy_.work(), 0},
                     fn, [&] { memcpy_.run(); });
  }
  kernels::Modulation modulation() const { return {&segment_, 1, 0, table_.data(), 6 * kWidth}; }

  Context& context_;
  Memcpy memcpy_;
  std::vector<BF16> x_ = to_bf16(random_floats(kRows * kWidth, 1)), y_ = x_;
  std::vector<float> weight_ = random_floats(kWidth, 2);
  std::vector<BF16> table_ = to_bf16(random_floats(6 * kWidth, 3));
  kernels::ModSegment segment_{0, kRows, 0};
};

}  // namespace

void bench_rows(Context& context) {
  RowBench rows(context);
  rows.rms_norm();
  rows.gated_residual();
  rows.swiglu();
  rows.quantize();
  rows.qkv();
}

}  // namespace h3s::bench
