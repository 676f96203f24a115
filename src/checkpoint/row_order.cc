#include "checkpoint/row_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "checkpoint/generator.h"
#include "checkpoint/weight_rows.h"

namespace h3s::checkpoint {
namespace {

// Blocks evenly over the network, neither the first nor the last when there is a choice: their weights are
// the least typical.
std::vector<std::int64_t> sampled_blocks(std::int64_t layers, int wanted) {
  const std::int64_t count = std::min<std::int64_t>(layers, wanted);
  std::vector<std::int64_t> blocks;
  for (std::int64_t i = 0; i < count; ++i) blocks.push_back((2 * i + 1) * layers / (2 * count));
  return blocks;
}

LinearSource layer_of(const Checkpoint& checkpoint, std::int64_t block, const char* name) {
  return checkpoint.linear(fmt::format("blocks.{}.{}", block, name));
}

// ---- qkv ----

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kRotated = 96;    // dimensions of a head that rope turns, in pairs (i, i + 48)
constexpr std::int64_t kStep = 8;        // every eighth row of a head is looked at, 16 in all
constexpr std::int64_t kLeastHeads = 8;  // fewer groups than 24 make no statistics
constexpr std::size_t kNumFeatures = 3, kNumClasses = 3;
// Standard deviations of the chi-square beyond its mean. At 6 degrees of freedom, one block, chance passes
// it once in 10^8 files; with more blocks less often.
constexpr double kSureLabelling = 12;

using Features = std::array<double, kNumFeatures>;

double log_energy(const WeightRows& rows, std::int64_t row, std::span<float> scratch) {
  rows.read(row, scratch);
  double sum = 0;
  for (const float v : scratch) sum += static_cast<double>(v) * v;
  return std::log(std::max(sum, 1e-60));
}

struct Mean {
  double sum = 0;
  int count = 0;
  void add(double v) {
    sum += v;
    ++count;
  }
  double value() const { return sum / count; }
};

// Of the 128 rows from `first` on: mean of the logarithms of their energies; rows that rope leaves alone
// against those it turns; its slow half against its fast half.
Features group_features(const WeightRows& rows, std::int64_t first, std::span<float> scratch) {
  Mean all, turned, still, fast, slow;
  for (std::int64_t d = kStep / 2; d < kHeadDim; d += kStep) {
    const double energy = log_energy(rows, first + d, scratch);
    all.add(energy);
    if (d >= kRotated) {
      still.add(energy);
      continue;
    }
    turned.add(energy);
    (d % (kRotated / 2) < kRotated / 4 ? fast : slow).add(energy);
  }
  return {all.value(), still.value() - turned.value(), slow.value() - fast.value()};
}

double determinant(const std::array<Features, kNumFeatures>& m) {
  return m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) -
         m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0]) +
         m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
}

// Determinant of the scatter of the groups around the mean of their class.
template <typename Label>
double scatter(const std::vector<Features>& groups, std::size_t classes, const Label& label) {
  std::array<Features, kNumClasses> mean{};
  std::array<double, kNumClasses> count{};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    count[label(g)] += 1;
    for (std::size_t f = 0; f < kNumFeatures; ++f) mean[label(g)][f] += groups[g][f];
  }
  for (std::size_t c = 0; c < classes; ++c)
    for (double& m : mean[c]) m /= count[c];
  std::array<Features, kNumFeatures> within{};
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t a = 0; a < kNumFeatures; ++a)
      for (std::size_t b = 0; b < kNumFeatures; ++b)
        within[a][b] += (groups[g][a] - mean[label(g)][a]) * (groups[g][b] - mean[label(g)][b]);
  return determinant(within);
}

// Bartlett's chi-square of Wilks' ratio, kFeatures * (kClasses - 1) degrees of freedom, of the two
// labellings.
struct Labellings {
  double blocked = 0, interleaved = 0;
};
constexpr double kFreedom = kNumFeatures * (kNumClasses - 1);

Labellings compare_labellings(const std::vector<Features>& groups) {
  const std::size_t heads = groups.size() / kNumClasses;
  const double total = scatter(groups, 1, [](std::size_t) { return std::size_t{0}; });
  const double factor =
      static_cast<double>(groups.size()) - 1 - static_cast<double>(kNumFeatures + kNumClasses) / 2;
  const auto chi_square = [&](double within) {
    const double ratio = within / total;
    return ratio > 0 && ratio <= 1 ? -factor * std::log(std::max(ratio, 1e-12)) : 0;  // 0 also for a NaN
  };
  return {
      .blocked = chi_square(scatter(groups, kNumClasses, [&](std::size_t g) { return g / heads; })),
      .interleaved = chi_square(scatter(groups, kNumClasses, [](std::size_t g) { return g % kNumClasses; }))};
}

Labellings compare_labellings(const WeightRows& rows) {
  std::vector<float> scratch(static_cast<std::size_t>(rows.k()));
  std::vector<Features> groups;
  for (std::int64_t first = 0; first < rows.n(); first += kHeadDim)
    groups.push_back(group_features(rows, first, scratch));
  rows.release_pages();
  return compare_labellings(groups);
}

// ---- fc1 ----

constexpr std::int64_t kMostRows = 1024;  // of a half
constexpr std::int64_t kLeastRows = 64;
constexpr int kSignings = 24;  // as many as random_bits24 has bits
constexpr double kSureAsymmetry = 8, kSureSymmetry = 4;

// How much longer the sum of the rows (each of length 1) is than under random signs, in standard deviations
// of the latter.
double asymmetry(const WeightRows& rows, std::int64_t first, std::int64_t count) {
  const std::int64_t sampled = std::min(count, kMostRows);
  const auto k = static_cast<std::size_t>(rows.k());
  const std::uint64_t base = fnv1a64("signs");
  std::vector<float> row(k);
  std::vector<std::vector<float>> sums(kSignings + 1, std::vector<float>(k));
  for (std::int64_t i = 0; i < sampled; ++i) {
    rows.read(first + i * count / sampled, row);
    double square = 0;
    for (const float v : row) square += static_cast<double>(v) * v;
    if (!(square > 0)) continue;
    const std::uint32_t signs = random_bits24(base, static_cast<std::uint64_t>(i));
    for (int s = 0; s <= kSignings; ++s) {
      const bool negative = s < kSignings && (signs >> s & 1u) != 0;
      const auto factor = static_cast<float>((negative ? -1 : 1) / std::sqrt(square));
      float* sum = sums[static_cast<std::size_t>(s)].data();
      for (std::size_t j = 0; j < k; ++j) sum[j] += factor * row[j];
    }
  }
  std::array<double, kSignings + 1> length{};
  for (std::size_t s = 0; s < length.size(); ++s)
    for (const float v : sums[s]) length[s] += static_cast<double>(v) * v;
  double mean = 0, variance = 0;
  for (int s = 0; s < kSignings; ++s) mean += length[static_cast<std::size_t>(s)] / kSignings;
  for (int s = 0; s < kSignings; ++s)
    variance += std::pow(length[static_cast<std::size_t>(s)] - mean, 2) / (kSignings - 1);
  return variance > 0 ? (length[kSignings] - mean) / std::sqrt(variance) : 0;
}

// The chance that random signs alone make a sum `deviations` longer, for the distribution with the longest
// tail: all rows along one line, where the square of the length has one degree of freedom.
double chance(double deviations) {
  return std::erfc(std::sqrt((1 + std::sqrt(2.0) * deviations) / 2));
}

// ---- words ----

std::string percent(double confidence) {
  return confidence > 0.9999 ? "over 99.99 %" : fmt::format("{:.2f} %", 100 * confidence);
}

Finding describe(const OrderVerdict& verdict, const char* layer, const char* expected, const char* other,
                 const char* remedy) {
  const std::string basis =
      fmt::format("confidence {}, {} blocks sampled; a statistic that was tried on made-up weights only",
                  percent(verdict.confidence), verdict.blocks);
  switch (verdict.order) {
    case RowOrder::kExpected:
      return {Severity::kNote, fmt::format("rows of {} are {} ({})", layer, expected, basis)};
    case RowOrder::kOther:
      return {Severity::kWarning, fmt::format("rows of {} seem to be {}, not {} ({}): the result would be "
                                              "noise; {}",
                                              layer, other, expected, basis, remedy)};
    case RowOrder::kUnclear:
      break;
  }
  return {Severity::kNote,
          fmt::format("whether rows of {} are {} or {} cannot be told from these weights: trust the file's "
                      "origin",
                      layer, expected, other)};
}

}  // namespace

// The confidence is that of a choice between the two orders, equally likely before, when features are normal
// around the mean of their class: the chi-squares are then twice the logarithms of the likelihoods.
OrderVerdict qkv_order(const Checkpoint& checkpoint, int blocks) {
  OrderVerdict verdict;
  if (checkpoint.spec().heads < kLeastHeads) return verdict;
  Labellings sum;
  int agree_blocked = 0, agree_interleaved = 0;
  for (const std::int64_t block : sampled_blocks(checkpoint.spec().layers, blocks)) {
    const Labellings one =
        compare_labellings(WeightRows(checkpoint, layer_of(checkpoint, block, "attn.qkv_proj")));
    sum.blocked += one.blocked;
    sum.interleaved += one.interleaved;
    agree_blocked += one.blocked > one.interleaved;
    agree_interleaved += one.interleaved > one.blocked;
    ++verdict.blocks;
  }
  const double freedom = kFreedom * verdict.blocks;
  const double least = freedom + kSureLabelling * std::sqrt(2 * freedom);
  if (agree_blocked == verdict.blocks && sum.blocked > least) verdict.order = RowOrder::kExpected;
  if (agree_interleaved == verdict.blocks && sum.interleaved > least) verdict.order = RowOrder::kOther;
  if (verdict.order != RowOrder::kUnclear)
    verdict.confidence = 1 / (1 + std::exp(-std::abs(sum.blocked - sum.interleaved) / 2));
  return verdict;
}

// The confidence is 1 minus the chance that every sampled block looks like this by luck.
OrderVerdict fc1_order(const Checkpoint& checkpoint, int blocks) {
  OrderVerdict verdict;
  const std::int64_t half = checkpoint.spec().ffn;
  if (half < kLeastRows) return verdict;
  int first_is_gate = 0, second_is_gate = 0;
  double luck = 1;
  for (const std::int64_t block : sampled_blocks(checkpoint.spec().layers, blocks)) {
    const WeightRows rows(checkpoint, layer_of(checkpoint, block, "mlp.fc1"));
    const double first = asymmetry(rows, 0, half), second = asymmetry(rows, half, half);
    first_is_gate += first > kSureAsymmetry && second < kSureSymmetry;
    second_is_gate += second > kSureAsymmetry && first < kSureSymmetry;
    rows.release_pages();
    luck *= chance(std::max({first, second, 0.0}));
    ++verdict.blocks;
  }
  if (first_is_gate == verdict.blocks) verdict.order = RowOrder::kExpected;
  if (second_is_gate == verdict.blocks) verdict.order = RowOrder::kOther;
  if (verdict.order != RowOrder::kUnclear) verdict.confidence = 1 - luck;
  return verdict;
}

std::vector<Finding> describe_row_orders(const Checkpoint& checkpoint, int blocks) {
  return {
      describe(qkv_order(checkpoint, blocks), "qkv_proj", "all q, all k, all v", "interleaved per head",
               "if the file came from the original shards, `h3stream convert --qkv interleaved` repacks it"),
      describe(fc1_order(checkpoint, blocks), "fc1", "gate first", "up first",
               "`h3stream convert --fc1 up-first` swaps the halves")};
}

}  // namespace h3s::checkpoint
