#include "plan/rates.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "base/parallel.h"
#include "checkpoint/merge_rows.h"
#include "exec/weight_loader.h"
#include "model/carver.h"
#include "ops/ops.h"

namespace h3s::plan {
namespace {

using kernels::Queue;

// Sizes of a measurement: large ones fill a GPU, small ones keep a processor busy for some tens of
// milliseconds.
struct Sizes {
  std::int64_t rows, few_rows, outputs, few_outputs, inputs;  // of a linear layer
  std::int64_t queries, keys, heads, few_queries;             // of attention
  std::int64_t plain_queries, plain_keys;                     // of attention in f32
  std::int64_t row_ops, copy_bytes;
};
constexpr Sizes kGpu{
    8192, 64, 5376, 128, 5376, 16384, 32768, 8, 128, 1024, 8192, 8192, std::int64_t{256} << 20};
constexpr Sizes kCpu{512, 16, 2688, 128, 5376, 512, 2048, 4, 64, 256, 1024, 512, std::int64_t{64} << 20};

constexpr std::int64_t kHeadDim = kernels::kHeadDim;
constexpr std::int64_t kFfn = 14336, kRotateGroup = 256;
constexpr double kBatchSeconds = 0.03;  // calls are timed in batches of at least this long
constexpr int kBatches = 5;             // of which the median counts

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

// Memory for the operands of every measurement, filled with numbers of magnitude up to 1: what is multiplied
// decides a GPU's clock.
class Operands {
 public:
  Operands(kernels::Backend& backend, mem::Accountant& accountant, const Sizes& sizes)
      : bytes_(std::max({sizes.rows * std::max(sizes.inputs, sizes.outputs) * 4, sizes.copy_bytes,
                         sizes.keys * sizes.heads * kHeadDim * 2, sizes.row_ops * 2 * kFfn * 2})),
        pinned_(accountant.allocate(mem::Space::kPinned, bytes_, "calibration")) {
    auto* values = pinned_.as<BF16>();
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < bytes_ / 2; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      values[i] = to_bf16(static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f);
    }
    for (mem::Buffer& buffer : device_) {
      buffer = accountant.allocate(mem::Space::kDevice, bytes_, "calibration");
      backend.copy({buffer.data(), bytes_, pinned_.data(), bytes_, bytes_, 1}, Queue::kCompute);
    }
    backend.sync(backend.record(Queue::kCompute));
  }

  template <typename T>
  T* device(std::size_t idx) const {
    return device_[idx].as<T>();
  }
  std::byte* pinned() const { return pinned_.as<std::byte>(); }

 private:
  std::int64_t bytes_;
  mem::Buffer pinned_;
  std::array<mem::Buffer, 3> device_;
};

// A file without a name, in the page cache.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<std::byte>& content)
      : file_(std::tmpfile(), std::fclose), bytes_(content.size()) {
    if (!file_ || std::fwrite(content.data(), 1, bytes_, file_.get()) != bytes_ ||
        std::fflush(file_.get()) != 0)
      fail(Status::kIo,
           "a temporary file of {} bytes, to measure how fast weights load, cannot be written: {}", bytes_,
           std::strerror(errno));
  }

  class Mapping {
   public:
    explicit Mapping(const TemporaryFile& file)
        : bytes_(file.bytes_),
          data_(mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fileno(file.file_.get()), 0)) {
      if (data_ == MAP_FAILED)
        fail(Status::kIo, "a temporary file cannot be mapped: {}", std::strerror(errno));
    }
    ~Mapping() { munmap(data_, bytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    const std::byte* data() const { return static_cast<const std::byte*>(data_); }

   private:
    std::size_t bytes_;
    void* data_;
  };

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::size_t bytes_;
};

class Rates {
 public:
  Rates(kernels::Backend& backend, mem::Accountant& accountant, const RateProgress& progress)
      : backend_(backend),
        accountant_(accountant),
        sizes_(backend.device_is_host() ? kCpu : kGpu),
        operands_(backend, accountant, sizes_),
        progress_(progress) {}

  Calibration measure();

 private:
  template <typename Call>
  double seconds(Call call, Queue queue = Queue::kCompute) const;
  template <typename Linear>
  LinearRate linear_rate(Linear linear) const;
  LinearRate int8() const;
  LinearRate floats(DType dtype) const;
  AttentionRate attention(DType dtype, std::int64_t queries, std::int64_t keys) const;
  double attention_seconds(DType dtype, std::int64_t queries, std::int64_t heads, std::int64_t keys) const;
  double rms_norm_seconds(std::int64_t rows) const;
  double row_bytes() const;
  double quantize_bytes() const;
  void copies(Calibration& c) const;
  double loading_bytes(const std::vector<std::byte>& content) const;
  MergeRate merge() const;
  struct MergePart;
  double merge_seconds(std::int64_t rank) const;
  void step(const char* what) const {
    if (progress_) progress_(what);
  }

  kernels::Backend& backend_;
  mem::Accountant& accountant_;
  const Sizes& sizes_;
  Operands operands_;
  const RateProgress& progress_;
};

// Median over batches of the mean time of a call; the first batch warms up and says how long a batch must be.
template <typename Call>
double Rates::seconds(Call call, Queue queue) const {
  const auto batch = [&](std::int64_t count) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < count; ++i) call();
    backend_.sync(backend_.record(queue));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / as_double(count);
  };
  batch(1);
  const auto count = static_cast<std::int64_t>(std::clamp(kBatchSeconds / batch(2), 1.0, 1e4));
  std::array<double, kBatches> times;
  for (double& time : times) time = batch(count);
  std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
  return times[kBatches / 2];
}

// linear(m, n) enqueues one product with `inputs` inputs. A large product, one of few outputs and one of few
// rows give the three numbers, one after another.
template <typename Linear>
LinearRate Rates::linear_rate(Linear linear) const {
  const Sizes& s = sizes_;
  const auto time = [&](std::int64_t m, std::int64_t n) { return seconds([&] { linear(m, n); }); };
  const double whole = time(s.rows, s.outputs), narrow = time(s.rows, s.few_outputs),
               low = time(s.few_rows, s.outputs);
  const double unit = (whole - low) / as_double((s.rows - s.few_rows) * s.outputs);  // of an output of a row
  LinearRate rate;
  rate.ops = 2 * as_double(s.inputs) / unit;
  rate.extra_outputs = std::max(0.0, narrow / unit - as_double(s.rows * s.few_outputs));
  rate.extra_rows =
      std::max(0.0, (low / unit - rate.extra_outputs) / as_double(s.outputs) - as_double(s.few_rows));
  return rate;
}

LinearRate Rates::int8() const {
  const auto* scale = operands_.device<float>(1);
  return linear_rate([&](std::int64_t m, std::int64_t n) {
    ops::linear_int8(backend_, {.x = operands_.device<std::int8_t>(0),
                                .x_scale = scale,
                                .w = operands_.device<std::int8_t>(1),
                                .w_scale = scale,
                                .y = operands_.device<void>(2),
                                .y_dtype = DType::kBF16,
                                .y_stride = n,
                                .m = m,
                                .n = n,
                                .k = sizes_.inputs});
  });
}

LinearRate Rates::floats(DType dtype) const {
  return linear_rate([&](std::int64_t m, std::int64_t n) {
    ops::linear(backend_, {.x = operands_.device<void>(0),
                           .x_dtype = dtype,
                           .x_stride = sizes_.inputs,
                           .w = operands_.device<void>(1),
                           .w_dtype = dtype,
                           .y = operands_.device<void>(2),
                           .y_dtype = dtype,
                           .y_stride = n,
                           .m = m,
                           .n = n,
                           .k = sizes_.inputs});
  });
}

double Rates::attention_seconds(DType dtype, std::int64_t queries, std::int64_t heads,
                                std::int64_t keys) const {
  return seconds([&] {
    ops::attention(backend_, {.q = operands_.device<void>(0),
                              .k = operands_.device<void>(1),
                              .v = operands_.device<void>(1),
                              .o = operands_.device<void>(2),
                              .dtype = dtype,
                              .heads = heads,
                              .q_tokens = queries,
                              .kv_tokens = keys,
                              .q_head_stride = queries * kHeadDim,
                              .q_token_stride = kHeadDim,
                              .k_head_stride = keys * kHeadDim,
                              .k_token_stride = kHeadDim,
                              .v_head_stride = keys * kHeadDim,
                              .v_token_stride = kHeadDim,
                              .o_head_stride = kHeadDim,
                              .o_token_stride = heads * kHeadDim,
                              .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))});
  });
}

AttentionRate Rates::attention(DType dtype, std::int64_t queries, std::int64_t keys) const {
  const double per_row = 4 * as_double(kHeadDim * keys);
  const double whole = attention_seconds(dtype, queries, sizes_.heads, keys);
  const double small = attention_seconds(dtype, sizes_.few_queries, 1, keys);
  AttentionRate rate;
  rate.ops = per_row * as_double(queries * sizes_.heads) / whole;
  rate.min_rows = small * rate.ops / per_row;
  return rate;
}

double Rates::rms_norm_seconds(std::int64_t rows) const {
  return seconds([&] {
    ops::rms_norm(backend_, {.x = operands_.device<void>(0),
                             .x_stride = sizes_.inputs,
                             .weight = operands_.device<float>(1),
                             .y = operands_.device<void>(2),
                             .dtype = DType::kBF16,
                             .m = rows,
                             .c = sizes_.inputs});
  });
}

// The three kinds that move most of a block's row bytes.
double Rates::row_bytes() const {
  const std::int64_t m = sizes_.row_ops, c = sizes_.inputs, heads = c / kHeadDim / 3;
  const double norm = rms_norm_seconds(m);
  const double residual = seconds([&] {
    ops::gated_residual(backend_, {.x = operands_.device<void>(2),
                                   .o = operands_.device<void>(0),
                                   .dtype = DType::kBF16,
                                   .m = m,
                                   .c = c});
  });
  const double rotation = seconds([&] {
    kernels::QkvArgs args{.src_stride = 3 * heads * kHeadDim,
                          .q_weight = operands_.device<float>(1),
                          .k_weight = operands_.device<float>(1),
                          .dtype = DType::kBF16,
                          .m = m,
                          .heads = heads};
    const std::int64_t width = heads * kHeadDim;
    std::int64_t at = 0;
    for (kernels::QkvArgs::Part* part : {&args.q, &args.k, &args.v}) {
      *part = {operands_.device<BF16>(0) + at, operands_.device<BF16>(2) + m * at, m * kHeadDim};
      at += width;
    }
    ops::qkv_norm_rope(backend_, args);
  });
  constexpr std::int64_t kElementBytes = 2;
  const std::int64_t moved = m * (2 * c + 3 * c + 2 * 3 * heads * kHeadDim) * kElementBytes;
  return as_double(moved) / (norm + residual + rotation);
}

double Rates::quantize_bytes() const {
  const std::int64_t m = sizes_.row_ops, c = sizes_.inputs;
  const double plain = seconds([&] {
    ops::quantize_rows(backend_, {.x = operands_.device<void>(0),
                                  .x_dtype = DType::kBF16,
                                  .x_stride = c,
                                  .rotate_group = kRotateGroup,
                                  .codes = operands_.device<std::int8_t>(2),
                                  .scale = operands_.device<float>(1),
                                  .m = m,
                                  .k = c});
  });
  const double swiglu = seconds([&] {
    ops::swiglu_quantize_rows(backend_, {.gate_up = operands_.device<void>(0),
                                         .dtype = DType::kBF16,
                                         .rotate_group = kRotateGroup,
                                         .codes = operands_.device<std::int8_t>(2),
                                         .scale = operands_.device<float>(1),
                                         .m = m,
                                         .k = kFfn});
  });
  return as_double(m * (3 * c + 5 * kFfn)) / (plain + swiglu);
}

void Rates::copies(Calibration& c) const {
  const std::int64_t bytes = sizes_.copy_bytes;
  void* device = operands_.device<void>(0);
  const auto rate = [&](void* dst, const void* src, Queue queue) {
    return as_double(bytes) / seconds(
                                  [&] {
                                    backend_.copy({dst, bytes, src, bytes, bytes, 1}, queue);
                                  },
                                  queue);
  };
  c.upload_bytes = rate(device, operands_.pinned(), Queue::kUpload);
  c.download_bytes = rate(operands_.pinned(), device, Queue::kDownload);
  // Rows of two heads, as O goes out: 512 of 14,336 bytes.
  constexpr std::int64_t kRow = 512, kPitch = 14336;
  const std::int64_t rows = bytes / kPitch;
  const double strided = seconds(
      [&] {
        backend_.copy({operands_.pinned(), kPitch, device, kRow, kRow, rows}, Queue::kDownload);
      },
      Queue::kDownload);
  c.copy_row_bytes = std::max(0.0, strided * c.download_bytes / as_double(rows) - as_double(kRow));
  std::vector<std::byte> host(static_cast<std::size_t>(bytes), std::byte{1});
  c.host_bytes =
      as_double(bytes) / seconds([&] { std::memcpy(operands_.pinned(), host.data(), host.size()); });
  c.loading_bytes = loading_bytes(host);
}

// As the weight loader does: pages of a file, mapped anew each time, into pinned memory.
double Rates::loading_bytes(const std::vector<std::byte>& content) const {
  const TemporaryFile file(content);
  const auto bytes = static_cast<std::int64_t>(content.size());
  const int threads = exec::loading_threads(backend_.device_is_host());
  return as_double(bytes) / seconds([&] {
           const TemporaryFile::Mapping mapping(file);
           exec::load_bytes(mapping.data(), bytes, threads, operands_.pinned());
         });
}

// What a thread merges in: a tile of weights, and one row of codes.
struct Rates::MergePart {
  static constexpr std::int64_t kRows = 32;
  BF16* tile;
  std::int8_t* codes;
  float *scratch, *panel, *cells, *up;

  MergePart(model::Carver& carver, std::int64_t k, std::int64_t rank)
      : tile(carver.take<BF16>(kRows * k)),
        codes(carver.take<std::int8_t>(k)),
        scratch(carver.take<float>(k)),
        panel(carver.take<float>(rank * checkpoint::kMergePanelColumns)),
        cells(carver.take<float>(kRows * checkpoint::kMergePanelColumns)),
        up(carver.take<float>(kRows * rank)) {
    if (up != nullptr) std::fill_n(up, kRows * rank, 0x1p-7f);
  }

  // As checkpoint::MergedLayer does a tile of int8 weights, whose codes and A are what lies there.
  void merge(const std::byte* operands, std::int64_t k, std::int64_t rank) const {
    const auto width = static_cast<std::size_t>(k);
    const auto* stored = reinterpret_cast<const std::int8_t*>(operands);
    const std::span<float> row(scratch, width);
    for (std::int64_t i = 0; i < kRows; ++i)
      checkpoint::dequantize_int8_row_fast({stored + i * k, width}, 0x1p-7f, kRotateGroup,
                                           {tile + i * k, width}, row);
    const checkpoint::TilePair pair{
        .down = operands, .down_dtype = DType::kBF16, .up = up, .rank = rank, .end = kRows};
    checkpoint::add_pairs({.weights = tile,
                           .dtype = DType::kBF16,
                           .rows = kRows,
                           .k = k,
                           .stride = k,
                           .pairs = {&pair, 1},
                           .bf16_steps = true,
                           .panel = panel,
                           .cells = cells});
    for (std::int64_t i = 0; i < kRows; ++i)
      checkpoint::draw_int8_row({tile + i * k, width}, kRotateGroup, 1, 0, {codes, width}, row);
  }
};

// Of a weight.
double Rates::merge_seconds(std::int64_t rank) const {
  constexpr std::int64_t kTiles = 4;  // of a thread
  const std::int64_t k = sizes_.inputs;
  const int threads = exec::merging_threads();
  const auto carve = [&](model::Carver carver) {
    std::vector<MergePart> parts;
    for (int i = 0; i < threads; ++i) parts.emplace_back(carver, k, rank);
    return std::pair(std::move(parts), carver.used_bytes());
  };
  const mem::Buffer memory =
      accountant_.allocate(mem::Space::kHost, carve(model::Carver()).second, "calibration");
  const std::vector<MergePart> parts = carve(model::Carver(memory.data())).first;
  const double taken = seconds([&] {
    in_slices(threads, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        for (std::int64_t tile = 0; tile < kTiles; ++tile)
          parts[static_cast<std::size_t>(i)].merge(operands_.pinned(), k, rank);
    });
  });
  return taken / as_double(threads * kTiles * MergePart::kRows * k);
}

// Two ranks tell the products from the rest.
MergeRate Rates::merge() const {
  constexpr std::int64_t kLow = 16, kHigh = 128;
  const double low = merge_seconds(kLow), high = merge_seconds(kHigh);
  MergeRate rate;
  const double product = std::max((high - low) / as_double(2 * (kHigh - kLow)), high / as_double(4 * kHigh));
  rate.ops = 1 / product;
  rate.weights = 1 / std::max(low - as_double(2 * kLow) * product, low / 2);
  return rate;
}

Calibration Rates::measure() {
  Calibration c;
  c.measured = true;
  c.overlaps = !backend_.device_is_host();
  step("int8 linears");
  c.int8 = int8();
  step("bf16 linears");
  c.bf16 = floats(DType::kBF16);
  step("fp32 linears");
  c.f32 = floats(DType::kF32);
  step("attention");
  c.attention_bf16 = attention(DType::kBF16, sizes_.queries, sizes_.keys);
  c.attention_f32 = attention(DType::kF32, sizes_.plain_queries, sizes_.plain_keys);
  step("row ops");
  c.row_bytes = row_bytes();
  c.quantize_bytes = quantize_bytes();
  c.call_seconds = rms_norm_seconds(1);
  step("copies");
  copies(c);
  step("merging of LoRAs");
  c.merge = merge();
  return c;
}

}  // namespace

Calibration measure_rates(kernels::Backend& backend, mem::Accountant& accountant,
                          const RateProgress& progress) {
  return Rates(backend, accountant, progress).measure();
}

}  // namespace h3s::plan
