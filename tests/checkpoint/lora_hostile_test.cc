// LoRA files that are wrong, odd or made to do harm: whatever the bytes, a file opens and every row of it can
// be read, or it is refused in one line that names the file, the key and the reason.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "base/error.h"
#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lora.h"
#include "checkpoint/parts.h"
#include "file_fixtures.h"
#include "lora_file.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

using test::LoraFile;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr const char* kLayer = "blocks.0.attn.out_proj";
const std::string kA = std::string(kLayer) + ".lora_A.weight", kB = std::string(kLayer) + ".lora_B.weight";

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

class LoraHostile : public testing::Test {
 protected:
  LoraHostile() : base_(written_base()), path_(dir_.file("lora.safetensors")) {}

  std::shared_ptr<const LoraSet> open(const std::string& path, float strength = 1,
                                      LoraMode mode = LoraMode::kRuntime) const {
    const std::vector<LoraRequest> requests{{path, strength}};
    return LoraSet::open(base_, requests, mode);
  }

  // Opening throws Error(status) with one line that starts with the path and holds every piece.
  void refused(const std::string& path, Status status, const std::vector<std::string>& pieces,
               float strength = 1) const {
    try {
      open(path, strength);
      ADD_FAILURE() << path << ": was accepted; expected: " << fmt::format("{}", fmt::join(pieces, ", "));
    } catch (const Error& e) {
      expect_one_line(e, status, path, pieces);
    }
  }
  void refused(LoraFile& file, const std::vector<std::string>& pieces, float strength = 1) const {
    refused(file.write(), Status::kBadFile, pieces, strength);
  }

  // A pair of rank 2 for out_proj, or for what `module` is called instead of it.
  void good_pair(LoraFile& file, const std::string& module = kLayer, DType dtype = DType::kBF16) const {
    file.random(module + ".lora_A.weight", {2, inner_}, 0.5f, dtype);
    file.random(module + ".lora_B.weight", {d_, 2}, 0.5f, dtype);
  }

  // Every value of a set, layer by layer.
  std::vector<float> contents(const LoraSet& set) const {
    std::vector<float> all;
    for (const Part& part : model_parts(base_.spec())) {
      const LoraLayer* layer = set.find(part.name);
      if (layer == nullptr) continue;
      std::vector<float> down(size(part.shape[1])), up(size(layer->rank()));
      for (std::int64_t i = 0; i < layer->rank(); ++i) {
        layer->down_row(i, down);
        all.insert(all.end(), down.begin(), down.end());
      }
      for (std::int64_t i = 0; i < part.shape[0]; ++i) {
        layer->up_row(i, up);
        all.insert(all.end(), up.begin(), up.end());
      }
      std::vector<float> bias(size(part.shape[0]));
      layer->add_to_bias(bias);
      all.insert(all.end(), bias.begin(), bias.end());
    }
    return all;
  }

  TempDir dir_;
  spec::ModelSpec spec_ = small_spec(Form::kCurve);
  std::int64_t d_ = spec_.hidden, inner_ = spec_.inner(), f_ = spec_.ffn;
  Checkpoint base_;
  std::string path_;

 private:
  Checkpoint written_base() const {
    ModelFile(Form::kCurve, WeightFormat::kBF16).write(dir_.file("model.safetensors"));
    return Checkpoint::open(dir_.file("model.safetensors"));
  }
};

// ---- twice the same ----

TEST_F(LoraHostile, TwoSpellingsOfOneLayerAreNotAddedUp) {
  for (const std::string other :
       {"diffusion_model.blocks.0.attn.out_proj", "lora_unet_blocks_0_attn_out_proj",
        "transformer_blocks.0.attn.to_out.0", "base_model.model.transformer_blocks.0.attn.to_out"}) {
    LoraFile file;
    good_pair(file);
    good_pair(file, other);
    refused(file, {kLayer, other, "the same rows"});
  }
}

TEST_F(LoraHostile, AFusedPairAndPartsOfItAreNotAddedUp) {
  LoraFile file;
  file.pair("blocks.0.attn.qkv_proj", 3 * inner_, d_, 2);
  file.pair("transformer_blocks.0.attn.to_k", inner_, d_, 2);
  refused(file, {"blocks.0.attn.qkv_proj", "transformer_blocks.0.attn.to_k", "the same rows"});
  LoraFile halves;  // the same layer, in both orders of its halves
  halves.pair("blocks.0.mlp.fc1", 2 * f_, d_, 2);
  halves.pair("transformer_blocks.0.ff.net.0.proj", 2 * f_, d_, 2);
  refused(halves, {"blocks.0.mlp.fc1", "ff.net.0.proj", "the same rows"});
}

TEST_F(LoraHostile, TwoSpellingsOfOneBiasAreNotAddedUp) {
  LoraFile file;
  file.random("blocks.0.adaln_proj.linear.diff_b", {18 * d_}, 1);
  file.random("diffusion_model.blocks.0.adaln_proj.linear.diff_b", {18 * d_}, 1);
  refused(file, {"diffusion_model.blocks.0.adaln_proj.linear.diff_b", "the same rows"});
}

TEST_F(LoraHostile, TwoFilesOfOneLayerAreAddedUp) {
  LoraFile one, two;
  good_pair(one);
  good_pair(two, "lora_unet_blocks_0_attn_out_proj");
  const std::vector<LoraRequest> requests{{one.write(), 1}, {two.write(), 1}, {one.write(), 1}};
  EXPECT_EQ(LoraSet::open(base_, requests, LoraMode::kRuntime)->find(kLayer)->rank(), 6);
}

// ---- numbers that are none ----

TEST_F(LoraHostile, ValuesThatAreNoNumbersAreRefused) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const float bad : {kNaN, kInf, -kInf})
      for (const std::string& key : {kA, kB}) {
        LoraFile file;
        const std::int64_t rows = key == kA ? 2 : d_, columns = key == kA ? inner_ : 2;
        std::vector<float> values(size(rows * columns), 0.25f);
        values.back() = bad;  // the last one is looked at too
        file.values(key, {rows, columns}, values, dtype);
        file.random(key == kA ? kB : kA,
                    key == kA ? std::vector<std::int64_t>{d_, 2} : std::vector<std::int64_t>{2, inner_}, 1);
        refused(file, {key, fmt::format("element {}", rows * columns - 1), "finite"});
      }
  LoraFile file;
  std::vector<float> bias(size(18 * d_), 1.0f);
  bias[7] = kNaN;
  file.values("blocks.0.adaln_proj.linear.diff_b", {18 * d_}, bias);
  refused(file, {"blocks.0.adaln_proj.linear.diff_b", "element 7", "finite"});
}

TEST_F(LoraHostile, TheLargestAndSmallestNumbersAreNumbers) {
  LoraFile file;
  std::vector<float> values(size(2 * inner_), std::numeric_limits<float>::max());
  values[1] = std::numeric_limits<float>::denorm_min();
  values[2] = -std::numeric_limits<float>::max();
  file.values(kA, {2, inner_}, values);
  file.random(kB, {d_, 2}, 1);
  std::vector<float> row(size(inner_));
  open(file.write())->find(kLayer)->down_row(0, row);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), values.begin()));
}

TEST_F(LoraHostile, AFactorPastFloatIsRefused) {
  LoraFile stored, metadata;
  for (LoraFile* file : {&stored, &metadata}) good_pair(*file);
  stored.values(std::string(kLayer) + ".alpha", {}, {3e38f});
  refused(stored, {kLayer, "strength 1e+30", "rank 2", "finite"}, 1e30f);
  metadata.metadata["alpha"] = "1e300";
  refused(metadata, {"__metadata__.alpha", "alpha 1e+300", "finite"});
}

TEST_F(LoraHostile, AlphaThatIsNoNumberIsRefused) {
  for (const std::string text :
       {"", " 8", "8 ", "8\n", "0x8", "8,0", "nan", "-inf", "1e999", "None", "eight", "8.0.0", "{}"}) {
    LoraFile file;
    good_pair(file);
    file.metadata["alpha"] = text;
    refused(file, {"__metadata__.alpha", "expected a number"});
  }
  for (const DType dtype : {DType::kBool, DType::kF8E5M2, DType::kF8E4M3}) {
    LoraFile file;
    good_pair(file);
    file.bytes(std::string(kLayer) + ".alpha", dtype, {}, std::string(dtype_size(dtype), '\1'));
    refused(file.write(), Status::kUnsupported,
            {std::string(kLayer) + ".alpha", "dtype must be", std::string(dtype_name(dtype))});
  }
}

TEST_F(LoraHostile, AlphaPatternsThatCannotBeFollowedAreRefused) {
  const auto with = [&](const std::string& entry, const std::string& text) {
    auto file = std::make_unique<LoraFile>();
    good_pair(*file);
    file->metadata[entry] = text;
    return file;
  };
  refused(*with("alpha_pattern", "{"), {"__metadata__.alpha_pattern"});
  refused(*with("alpha_pattern", "[8]"), {"__metadata__.alpha_pattern"});
  refused(*with("alpha_pattern", R"({"to_q": "eight"})"), {"__metadata__.alpha_pattern.to_q", "number"});
  refused(*with("alpha_pattern", R"({".*to_q": 8})"), {"__metadata__.alpha_pattern..*to_q", "expressions"});
  refused(*with("network_alphas", R"({"": 8})"), {"__metadata__.network_alphas.", "name of a module"});
  refused(*with("lora_adapter_metadata", "8"), {"__metadata__.lora_adapter_metadata"});
  refused(*with("lora_adapter_metadata", R"({"transformer.lora_alpha": "x"})"), {"lora_alpha", "number"});
  refused(with("use_dora", "true")->write(), Status::kUnsupported, {"__metadata__.use_dora", "DoRA"});
  refused(with("lora_adapter_metadata", R"({"transformer.use_dora": true})")->write(), Status::kUnsupported,
          {"use_dora", "DoRA"});
}

TEST_F(LoraHostile, AStrengthThatIsNoNumberIsRefused) {
  LoraFile file;
  good_pair(file);
  for (const float strength : {kNaN, kInf, -kInf}) {
    try {
      open(file.write(), strength);
      ADD_FAILURE() << "accepted " << strength;
    } catch (const Error& e) {
      EXPECT_EQ(static_cast<int>(e.status()), static_cast<int>(Status::kInvalidArgument)) << e.what();
    }
  }
}

// ---- shapes ----

TEST_F(LoraHostile, ShapesThatAreNoPairAreRefused) {
  struct Case {
    std::vector<std::int64_t> a, b;
    std::string key, reason;
  };
  for (const auto& [a, b, key, reason] :
       {Case{{0, inner_}, {d_, 0}, kA, "expected a matrix, got shape [0,"},
        Case{{2, inner_}, {0, 2}, kB, "[0,2]"}, Case{{}, {d_, 2}, kA, "got shape []"},
        Case{{2 * inner_}, {d_, 2}, kA, "expected a matrix"},
        Case{{1, 2, inner_}, {d_, 2}, kA, "expected a matrix"},
        Case{{inner_, 2}, {2, d_}, kB, fmt::format("B has rank {}, A {}", d_, inner_)}}) {
    LoraFile file;
    file.random(kA, a, 1);
    file.random(kB, b, 1);
    refused(file, {key, reason});
  }
}

TEST_F(LoraHostile, ARankAboveBothSidesIsRead) {
  LoraFile file;
  file.pair(kLayer, d_, inner_, 2 * (d_ + inner_));
  EXPECT_EQ(open(file.write())->find(kLayer)->rank(), 2 * (d_ + inner_));
}

// ---- names ----

TEST_F(LoraHostile, NamesThatAreNearlyALayersAreNot) {
  for (const std::string module :
       {"xblocks.0.attn.out_proj", "blocks.0.attn.out_proj.x", "blocks.00.attn.out_proj",
        "blocks.-1.attn.out_proj", "Blocks.0.attn.out_proj", "blocks.0.attn.out_proj.weight",
        "blocks.0..attn.out_proj", "blocks.0.attn.out", "lora_te_blocks_0_attn_out_proj",
        "text_encoder.blocks.0.attn.out_proj", "control_blocks.0.attn.out_proj",
        "transformer_blocks.99999999999999999999.attn.to_out.0", " ", "blocks.0.attn.out_proj "}) {
    LoraFile file;
    good_pair(file, module);
    refused(file, {"nothing of this LoRA applies", "no linear layer"});
    good_pair(file);
    const LoraReport report = open(file.write())->reports()[0];
    EXPECT_EQ(report.applied, 1) << module;
    EXPECT_EQ(report.total, 2) << module;
  }
}

TEST_F(LoraHostile, NamesCannotBreakTheLineOrFloodIt) {
  const std::string ugly = "a\nb\r\x1b[31m\x7f" + std::string(100'000, 'z');
  LoraFile listed;
  good_pair(listed);
  listed.random(ugly, {1}, 1);
  good_pair(listed, ugly);
  const std::string text = open(listed.write())->reports()[0].text();
  EXPECT_EQ(text.find_first_of("\n\r\x1b\x7f"), text.npos);
  EXPECT_LT(text.size(), 2000u);
  LoraFile half;
  half.random(ugly + ".lora_A.weight", {2, inner_}, 1);
  try {
    open(half.write());
    ADD_FAILURE() << "half a pair was accepted";
  } catch (const Error& e) {
    const std::string refusal = e.what();
    EXPECT_EQ(refusal.find_first_of("\n\r\x1b\x7f"), refusal.npos);
    EXPECT_LT(refusal.size(), 2000u);
  }
}

TEST_F(LoraHostile, BiasesOfBAreRefusedInEverySpelling) {
  for (const std::string suffix :
       {".lora_B.bias", ".lora_B.default.bias", ".lora_up.bias", ".lora.up.bias"}) {
    LoraFile file;
    good_pair(file);
    file.random(kLayer + suffix, {d_}, 1);
    refused(file.write(), Status::kUnsupported, {kLayer + suffix, "bias of B"});
  }
}

// Refused although no layer of this network is meant: what else of the file is right is not known.
TEST_F(LoraHostile, OtherAdaptersAreRefusedWhereverTheyStand) {
  LoraFile file;
  good_pair(file);
  file.random("text_encoder.layers.3.mlp.dora_scale", {4}, 1);
  refused(file.write(), Status::kUnsupported, {"text_encoder.layers.3.mlp.dora_scale", "DoRA"});
}

// ---- where the bytes lie ----

TEST_F(LoraHostile, UnalignedTensorsAndAnyOrderAreTheSame) {
  const auto add = [&](LoraFile& file, int step) {
    switch (step) {
      case 0:
        return good_pair(file, kLayer, DType::kF32);
      case 1:
        return file.pair("blocks.0.attn.to_q", inner_, d_, 3);
      case 2:
        return file.pair("blocks.0.attn.to_v", inner_, d_, 2);
      default:
        return file.random("blocks.0.adaln_proj.linear.diff_b", {18 * d_}, 1, DType::kF32);
    }
  };
  LoraFile straight, odd;
  for (const int step : {0, 1, 2, 3}) add(straight, step);
  odd.bytes("odd", DType::kU8, {1}, "x");
  for (const int step : {3, 2, 1, 0}) add(odd, step);
  const auto expected = open(straight.write()), got = open(odd.write());
  EXPECT_EQ(contents(*got), contents(*expected));
  EXPECT_EQ(got->reports()[0].applied, 4);
  EXPECT_EQ(got->reports()[0].total, 5);
}

TEST_F(LoraHostile, FilesThatAreNoneAreRefused) {
  LoraFile lora;
  good_pair(lora);
  const std::string good = read_file(lora.write());
  write_file(path_, good + "\nL2P_bypass_" + std::string(53, 'x'));
  refused(path_, Status::kBadFile, {"65"});
  for (const std::string& bytes :
       {std::string(), std::string(7, '\0'), good.substr(0, good.size() - 1),
        std::string("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")}) {
    write_file(path_, bytes);
    refused(path_, Status::kBadFile, {});
  }
  refused(dir_.file("none.safetensors"), Status::kIo, {});
  refused(base_.file().path(), Status::kBadFile, {"nothing of this LoRA applies", "no part of a LoRA"});
}

// One, two or three bytes of the header changed: nothing but an Error comes out, and what opens can be read.
TEST_F(LoraHostile, ChangedHeadersOpenOrAreRefused) {
  LoraFile lora;
  lora.metadata["alpha"] = "8";
  good_pair(lora);
  lora.pair("blocks.0.attn.to_q", inner_, d_, 3);
  lora.values("blocks.0.attn.to_q.alpha", {}, {4});
  lora.random("blocks.0.adaln_proj.linear.diff_b", {18 * d_}, 1);
  const std::string good = read_file(lora.write());
  std::uint64_t header = 0;
  std::memcpy(&header, good.data(), sizeof header);
  constexpr int kRounds = 2000;
  constexpr std::string_view kBytes = "0123456789\"{}[]:,.-eAB_xk\n\\ \x01\xff";
  std::mt19937 random(20);
  int opened = 0, thrown = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = good;
    for (std::uint32_t changes = 1 + random() % 3; changes > 0; --changes)
      bytes[sizeof header + random() % header] = kBytes[random() % kBytes.size()];
    write_file(path_, bytes);
    try {
      const auto set = open(path_, 0.5f);
      EXPECT_GT(set->reports()[0].applied, 0) << round;
      for (const float v : contents(*set)) ASSERT_TRUE(std::isfinite(v)) << round;
      ++opened;
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.rfind(path_ + ": ", 0), 0u) << round << ": " << text;
      EXPECT_EQ(text.find('\n'), text.npos) << round << ": " << text;
      ++thrown;
    }
  }
  EXPECT_GT(opened, kRounds / 100) << "the changes are too rough to get past the container";
  EXPECT_GT(thrown, kRounds / 10);
}

}  // namespace
}  // namespace h3s::checkpoint
