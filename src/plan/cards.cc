#include "plan/cards.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace h3s::plan {
namespace {

// GeForce cards multiply bf16 at half the rate of fp16 when they accumulate in 32 bits: that half is meant.
constexpr Card kCards[] = {
    // name, sm, SMs, GiB, bf16 TFLOP/s, int8 TOP/s, fp32 TFLOP/s, memory GB/s, link GB/s
    {"rtx2060", 75, 30, 6, 25.8, 103.2, 6.5, 336, 15.75},
    {"rtx4060", 89, 24, 8, 30.2, 120.9, 15.1, 272, 15.75},
    {"rtx3060ti", 86, 38, 8, 32.4, 129.6, 16.2, 448, 31.5},
    {"rtx3070", 86, 46, 8, 40.6, 162.6, 20.3, 448, 31.5},
    {"rtx3080", 86, 68, 10, 59.5, 238.1, 29.8, 760, 31.5},
    {"rtx3060", 86, 28, 12, 25.5, 101.9, 12.7, 360, 31.5},
    {"rtx4070", 89, 46, 12, 58.3, 233.2, 29.1, 504, 31.5},
    {"rtx5070", 120, 48, 12, 61.7, 246.9, 30.9, 672, 63},
    {"rtx4080", 89, 76, 16, 97.5, 389.9, 48.7, 717, 31.5},
    {"rtx5070ti", 120, 70, 16, 87.9, 351.5, 43.9, 896, 63},
    {"rtx5080", 120, 84, 16, 112.6, 450.2, 56.3, 960, 63},
    {"rtx3090", 86, 82, 24, 71.2, 284.7, 35.6, 936, 31.5},
    {"rtx4090", 89, 128, 24, 165.2, 660.6, 82.6, 1008, 31.5},
    {"rtx5090", 120, 170, 32, 209.5, 838, 104.8, 1792, 63},
    {"l40s", 89, 142, 48, 362, 733, 91.6, 864, 31.5},
    {"a100", 80, 108, 80, 312, 624, 19.5, 2039, 31.5},
    {"h100", 90, 132, 80, 989.4, 1979, 66.9, 3352, 63},
    {"h200", 90, 132, 141, 989.4, 1979, 66.9, 4800, 63},
};

// What the H200 reaches of its published peaks, by kernel (docs/hardware.md): the kernels for sm_90, and the
// mma.sync kernels that every other card runs.
struct Shares {
  double int8, bf16, attention;
};
constexpr Shares kHopper{1290.0 / 1979, 650.0 / 989.4, 648.0 / 989.4};
constexpr Shares kPortable{684.0 / 1979, 345.0 / 989.4, 430.0 / 989.4};
constexpr double kF32Share = 20.9 / 66.9;         // linear_fma
constexpr double kRowShare = 0.8 * 4184 / 4800;   // row ops at 80 % of what a copy reaches
constexpr double kQuantizeShare = 2177.0 / 4800;  // quantise and rotate
constexpr double kLinkShare = 55.0 / 63;          // copies of pinned memory
// One product of 16,384 x 128 outputs, a tile for each multiprocessor, runs at 0.4 of the full rate.
constexpr double kExtraOutputs = 1.5 * 16384 * 128 / 132;  // a multiprocessor
constexpr double kTileRows =
    128;  // of linears and attention; of a linear's tiles half of one is empty on average
constexpr double kLaunchSeconds = 4e-6;
constexpr double kHostBytes = 10e9;     // one thread, memory to memory
constexpr double kLoadingBytes = 12e9;  // several threads, from mapped pages, whose faults bound them
constexpr double kFileBytes = 2e9;      // an SSD
// Merging by two threads of an AMD EPYC (bench/results/merge-cpu.json), and by the eight of a usual host.
constexpr MergeRate kMergeByTwo{1.59e9, 480e9};
constexpr double kUsualThreads = 8;
// An H200's driver reported 527 MiB in use with a context, and 12 MiB more with all kernels loaded.
constexpr std::int64_t kContextBytes = std::int64_t{576} << 20;
constexpr std::int64_t kDriverBytes = std::int64_t{256} << 20;

MergeRate merge_rate(double threads) {
  return {kMergeByTwo.weights * threads / 2, kMergeByTwo.ops * threads / 2};
}

// Lower case, letters and digits alone, without the maker's words.
std::string plain_name(std::string_view text) {
  std::string name;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word : {"nvidia", "geforce"})
    if (const std::size_t at = name.find(word); at != std::string::npos) name.erase(at, std::strlen(word));
  return name;
}

}  // namespace

std::span<const Card> cards() {
  return kCards;
}

const Card* find_card(std::string_view name) {
  for (const Card& card : kCards)
    if (name == card.name) return &card;
  return nullptr;
}

const Card* match_card(std::string_view device_name) {
  const std::string name = plain_name(device_name);
  const Card* best = nullptr;
  for (const Card& card : kCards) {
    const std::string_view known = card.name;
    if (!name.starts_with(known)) continue;
    if (best == nullptr || known.size() > std::strlen(best->name)) best = &card;
  }
  if (best == nullptr) return nullptr;
  const std::string rest = name.substr(std::strlen(best->name));
  // A Ti or SUPER that the table does not have is another card.
  return rest.starts_with("ti") || rest.starts_with("super") || rest.starts_with("laptop") ? nullptr : best;
}

const Card* nearest_card(int sm, int multiprocessors) {
  const Card* best = nullptr;
  const auto distance = [&](const Card& card) { return std::abs(card.multiprocessors - multiprocessors); };
  for (const Card& card : kCards)
    if (card.sm == sm && (best == nullptr || distance(card) < distance(*best))) best = &card;
  return best;
}

Calibration expect(const Card& card) {
  const Shares& shares = card.sm == 90 ? kHopper : kPortable;
  const double extra_outputs = kExtraOutputs * card.multiprocessors;
  const double f32 = kF32Share * card.f32_tflops * 1e12;
  const bool has_bf16 = card.sm >= 80;  // older tensor cores have fp16 alone: bf16 runs on the others
  const auto linear = [&](double ops) { return LinearRate{ops, kTileRows / 2, extra_outputs}; };
  const AttentionRate plain{f32, kTileRows * card.multiprocessors};
  Calibration c;
  c.device = card.name;
  c.measured = std::string_view(card.name) == "h200";
  c.overlaps = true;
  c.int8 = linear(shares.int8 * card.int8_tops * 1e12);
  c.f32 = linear(f32);
  c.bf16 = has_bf16 ? linear(shares.bf16 * card.bf16_tflops * 1e12) : c.f32;
  c.attention_f32 = plain;
  c.attention_bf16 = plain;
  if (has_bf16) c.attention_bf16.ops = shares.attention * card.bf16_tflops * 1e12;
  c.row_bytes = kRowShare * card.memory_gbps * 1e9;
  c.quantize_bytes = kQuantizeShare * card.memory_gbps * 1e9;
  c.call_seconds = kLaunchSeconds;
  c.upload_bytes = c.download_bytes = kLinkShare * card.link_gbps * 1e9;
  c.host_bytes = kHostBytes;
  c.loading_bytes = kLoadingBytes;
  c.merge = merge_rate(kUsualThreads);
  c.file_bytes = kFileBytes;
  c.context_bytes = kContextBytes;
  return c;
}

// Two threads of an AMD EPYC (bench/results/cpu-zen5-2core.json).
Calibration expect_cpu(int threads) {
  const double pairs = std::max(1, threads) / 2.0;
  Calibration c;
  c.device = "cpu";
  c.int8 = {pairs * 1.86e12, 28, 0};
  c.bf16 = {pairs * 470e9, 16, 0};
  c.f32 = c.bf16;
  c.attention_bf16 = {pairs * 440e9, 0};
  c.attention_f32 = c.attention_bf16;
  c.row_bytes = pairs * 25e9;
  c.quantize_bytes = pairs * 13e9;
  c.upload_bytes = c.download_bytes = c.host_bytes = c.loading_bytes = kHostBytes;
  c.merge = merge_rate(2 * pairs);
  c.file_bytes = kFileBytes;
  return c;
}

std::int64_t usable_bytes(const Card& card) {
  return static_cast<std::int64_t>(card.memory_gib * 0x1p30) - kDriverBytes;
}

std::string card_names() {
  std::string names;
  for (const Card& card : kCards) names += fmt::format("{}{}", names.empty() ? "" : ", ", card.name);
  return names;
}

}  // namespace h3s::plan
