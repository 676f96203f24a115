// Merging happens in the memory that was planned for it, whoever merges beside, and refuses what it cannot
// hold.
#include <gtest/gtest.h>

#include <future>

#include "base/error.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"
#include "exec/weight_loader.h"
#include "lora_file.h"
#include "mem/heap_watch.h"

namespace h3s::test {
namespace {

using checkpoint::LoraMode;
using checkpoint::LoraRequest;
using checkpoint::WeightFormat;

constexpr std::int64_t kRank = 24;

// A model of a format with a LoRA on every layer; with another strength than 1 a coarse one on qkv_proj.
class Merging {
 public:
  explicit Merging(WeightFormat format, DType compute = DType::kBF16, float strength = 1)
      : file_(small_spec(), format) {
    if (strength == 1) {
      lora_.all_layers(small_spec(), kRank);
    } else {
      const std::string module = "blocks.0.attn.qkv_proj";
      const checkpoint::LinearSource source = file_.get().linear(module);
      lora_.random(module + ".lora_A.weight", {kRank, source.k}, 1);
      lora_.random(module + ".lora_B.weight", {source.n, kRank}, 1);
    }
    const std::vector<LoraRequest> requests{{lora_.write(), strength}};
    checkpoint_.emplace(file_.get().with_loras(requests, LoraMode::kMerge));
    const exec::WeightLoader bare(*checkpoint_, compute, false);
    memory_ = books_.allocate(mem::Space::kHost, bare.sizes().merge_bytes, "merging of LoRAs");
    loader_.emplace(bare.with_merge_memory(memory_.data()));
  }
  const exec::WeightLoader& loader() const { return *loader_; }
  const checkpoint::Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::string& lora_path() { return lora_.write(); }

  std::vector<std::byte> slot() const {
    return std::vector<std::byte>(static_cast<std::size_t>(loader_->sizes().largest_block));
  }
  void load(std::int64_t block_idx, std::vector<std::byte>& into) const {
    std::int64_t used = 0;
    loader_->load_block(fmt::format("blocks.{}", block_idx), true, {into.data(), into.data()}, &used);
  }

 private:
  CheckpointFile file_;
  LoraFile lora_;
  mem::Accountant books_{mem::make_heap_allocator(/*poison=*/true)};
  mem::Buffer memory_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  std::optional<exec::WeightLoader> loader_;
};

constexpr WeightFormat kFormats[] = {
    WeightFormat::kBF16,  WeightFormat::kInt8Tensorwise, WeightFormat::kFloat8E4M3, WeightFormat::kMxfp8,
    WeightFormat::kNvfp4, WeightFormat::kAsymW4A8,       WeightFormat::kConvrotW4A4};

// A row of floats of the widest layer; a tile of the merge is eight times that and more.
TEST(LoraMerge, AsksTheHeapForNothingOfSize) {
  if (!HeapWatch::works()) GTEST_SKIP() << "a sanitizer has its own heap";
  for (const WeightFormat format : kFormats)
    for (const DType compute : {DType::kBF16, DType::kF32}) {
      const Merging merging(format, compute);
      std::vector<std::byte> slot = merging.slot();
      const HeapWatch watch(4 * small_spec().ffn);
      merging.load(0, slot);
      EXPECT_EQ(watch.bytes(), 0) << checkpoint::weight_format_name(format);
    }
}

TEST(LoraMerge, TwoBlocksAtATimeHaveTheBitsOfOne) {
  for (const WeightFormat format : kFormats) {
    const Merging merging(format);
    std::vector<std::byte> alone[2] = {merging.slot(), merging.slot()},
                           beside[2] = {merging.slot(), merging.slot()};
    for (int i = 0; i < 2; ++i) merging.load(i, alone[i]);
    auto other = std::async(std::launch::async, [&] { merging.load(1, beside[1]); });
    merging.load(0, beside[0]);
    other.get();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(alone[i], beside[i]) << checkpoint::weight_format_name(format);
  }
}

// The difference passes the largest bf16 number, the factor does not.
TEST(LoraMerge, AStrengthThatOverflowsIsRefusedByKey) {
  for (const WeightFormat format : kFormats)
    for (const DType compute : {DType::kBF16, DType::kF32}) {
      const Merging merging(format, compute, 3e38f);
      std::vector<std::byte> slot = merging.slot();
      try {
        merging.load(0, slot);
        ADD_FAILURE() << checkpoint::weight_format_name(format) << " was merged";
      } catch (const Error& e) {
        EXPECT_EQ(e.status(), Status::kInvalidArgument);
        const std::string text = e.what();
        for (const char* part : {"blocks.0.attn.qkv_proj.weight", "not finite", "strength"})
          EXPECT_NE(text.find(part), std::string::npos) << text;
        EXPECT_EQ(text.find('\n'), std::string::npos);
      }
    }
}

// What the plan holds for it beside the same plan without LoRAs: sixteen parts, and nothing else.
TEST(LoraMerge, IsInThePlanOfHostMemory) {
  const CheckpointFile file(small_spec(), WeightFormat::kInt8Tensorwise);
  const Merging merging(WeightFormat::kInt8Tensorwise);
  const SmallJob run(small_spec(), ragged_job());
  const exec::SessionOptions options{.dials = {.schedule = exec::Schedule::kFlat, .head_group = 2}};
  const exec::Footprint without = measure_footprint(file.get(), run.layout, options, false);
  const exec::Footprint with = measure_footprint(merging.checkpoint(), run.layout, options, false);
  EXPECT_EQ(with.peak_bytes(mem::Space::kHost) - without.peak_bytes(mem::Space::kHost),
            mem::occupied_bytes(merging.loader().sizes().merge_bytes));
  EXPECT_EQ(with.device_bytes(), without.device_bytes());
}

}  // namespace
}  // namespace h3s::test
