// LoRA files: every spelling lands on its rows, what cannot be applied is listed, what would be half applied
// is refused by key and reason.
#include "checkpoint/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/draw.h"
#include "file_fixtures.h"
#include "lora_file.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

using test::LoraFile;

class Lora : public testing::Test {
 protected:
  // A checkpoint of the form and format, on disk.
  const Checkpoint& base(Form form = Form::kCurve, WeightFormat format = WeightFormat::kBF16) {
    const std::string path = dir_.file("model.safetensors");
    ModelFile(form, format).write(path);
    base_ = std::make_unique<Checkpoint>(Checkpoint::open(path));
    return *base_;
  }
  std::shared_ptr<const LoraSet> open(LoraFile& file, float strength = 1,
                                      LoraMode mode = LoraMode::kRuntime) {
    const std::vector<LoraRequest> requests{{file.write(), strength}};
    return LoraSet::open(base_ ? *base_ : base(), requests, mode);
  }
  // Opening fails with a text that names the file, the key and the reason.
  void expect_refused(LoraFile& file, const std::string& key, const std::string& reason,
                      LoraMode mode = LoraMode::kRuntime) {
    try {
      open(file, 1, mode);
      FAIL() << "not refused: " << key;
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find(key), std::string::npos) << text;
      EXPECT_NE(text.find(reason), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      EXPECT_NE(text.find(".safetensors: "), std::string::npos) << text;
    }
  }

  spec::ModelSpec spec_ = small_spec(Form::kCurve);
  std::int64_t d_ = spec_.hidden, inner_ = spec_.inner(), f_ = spec_.ffn;
  TempDir dir_;
  std::unique_ptr<Checkpoint> base_;
};

// A [2, k], B [n, 2] under the two suffixes.
void add_pair(LoraFile& file, const std::string& down, const std::string& up, std::int64_t n, std::int64_t k,
              DType dtype = DType::kBF16) {
  file.random(down, {2, k}, 0.5f, dtype);
  file.random(up, {n, 2}, 0.5f, dtype);
}

TEST_F(Lora, EverySpellingOfAPair) {
  const std::pair<const char*, const char*> suffixes[] = {
      {".lora_A.weight", ".lora_B.weight"},
      {".lora_A.default.weight", ".lora_B.default.weight"},
      {".lora_A", ".lora_B"},
      {".lora_down.weight", ".lora_up.weight"},
      {".lora.down.weight", ".lora.up.weight"}};
  const char* modules[] = {"diffusion_model.blocks.0.attn.out_proj",
                           "model.diffusion_model.blocks.0.attn.out_proj",
                           "blocks.0.attn.out_proj",
                           "lora_unet_blocks_0_attn_out_proj",
                           "transformer_blocks.0.attn.to_out.0",
                           "transformer.transformer_blocks.0.attn.to_out.0",
                           "base_model.model.transformer_blocks.0.attn.to_out.0"};
  for (const auto& [a, b] : suffixes)
    for (const std::string module : modules) {
      LoraFile file;
      add_pair(file, module + a, module + b, d_, inner_, DType::kF16);
      const auto set = open(file);
      EXPECT_NE(set->find("blocks.0.attn.out_proj"), nullptr) << module << a;
      EXPECT_EQ(set->reports()[0].text(),
                fmt::format("{}: 1 of 1 applied, strength 1", set->reports()[0].path));
    }
}

TEST_F(Lora, SplitProjectionsAndSwappedHalves) {
  LoraFile file;
  const std::string block = "transformer_blocks.0.";
  for (const char* which : {"q", "k", "v"}) {
    const std::string module = block + "attn.to_" + which;
    file.values(module + ".lora_A.weight", {1, d_}, std::vector<float>(static_cast<std::size_t>(d_), 1.0f));
    std::vector<float> b(static_cast<std::size_t>(inner_));
    for (std::size_t i = 0; i < b.size(); ++i)
      b[i] = static_cast<float>(i) + 1000.0f * static_cast<float>(which[0]);
    file.values(module + ".lora_B.weight", {inner_, 1}, b);
  }
  file.values(block + "ff.net.0.proj.lora_A.weight", {1, d_},
              std::vector<float>(static_cast<std::size_t>(d_), 1.0f));
  std::vector<float> halves(static_cast<std::size_t>(2 * f_));
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<float>(i);
  file.values(block + "ff.net.0.proj.lora_B.weight", {2 * f_, 1}, halves);
  add_pair(file, "token_refiner.refiner_blocks.0.ff.net.2.lora_A.weight",
           "token_refiner.refiner_blocks.0.ff.net.2.lora_B.weight", d_, f_);
  const auto set = open(file);
  EXPECT_EQ(set->reports()[0].applied, 5);

  const LoraLayer& qkv = *set->find("blocks.0.attn.qkv_proj");
  EXPECT_EQ(qkv.rank(), 3);
  std::vector<float> row(3);
  for (std::int64_t part = 0; part < 3; ++part)
    for (const std::int64_t i : {std::int64_t{0}, inner_ - 1}) {
      qkv.up_row(part * inner_ + i, row);
      EXPECT_EQ(std::count(row.begin(), row.end(), 0.0f), 2);
      EXPECT_EQ(row[0] + row[1] + row[2], static_cast<float>(i) + 1000.0f * static_cast<float>("qkv"[part]));
    }
  // Here the gate half is first, there second.
  const LoraLayer& fc1 = *set->find("blocks.0.mlp.fc1");
  std::vector<float> one(1);
  fc1.up_row(0, one);
  EXPECT_EQ(one[0], static_cast<float>(f_));
  fc1.up_row(f_ + 3, one);
  EXPECT_EQ(one[0], 3.0f);
  EXPECT_NE(set->find("token_refiner.blocks.0.mlp.fc2"), nullptr);
}

float scale_with(const std::shared_ptr<const LoraSet>& set) {
  return set->find("blocks.0.attn.out_proj")->pairs[0].scale;
}

TEST_F(Lora, AlphaOfTensorsOfMetadataOrNone) {
  const auto file_with = [&](LoraFile& file) {
    add_pair(file, "blocks.0.attn.out_proj.lora_A.weight", "blocks.0.attn.out_proj.lora_B.weight", d_,
             inner_);
  };
  LoraFile none, stored, in_metadata, both, baked;
  for (LoraFile* file : {&none, &stored, &in_metadata, &both, &baked}) file_with(*file);
  EXPECT_EQ(scale_with(open(none, 0.75f)), 0.75f);  // not 1/rank
  stored.values("blocks.0.attn.out_proj.alpha", {}, {8});
  EXPECT_EQ(scale_with(open(stored, 0.75f)), 3.0f);
  in_metadata.metadata["alpha"] = "128";
  EXPECT_EQ(scale_with(open(in_metadata)), 64.0f);
  both.metadata["alpha"] = "128";
  both.values("blocks.0.attn.out_proj.alpha", {1}, {1});
  EXPECT_EQ(scale_with(open(both)), 0.5f);
  baked.metadata = {{"alpha", "128"}, {"baked_scale", "0.0625"}};
  EXPECT_EQ(scale_with(open(baked)), 1.0f);
}

TEST_F(Lora, AlphaOfEveryScalarType) {
  const auto scale = [&](DType dtype, std::string bytes) {
    LoraFile file;
    add_pair(file, "blocks.0.attn.out_proj.lora_A.weight", "blocks.0.attn.out_proj.lora_B.weight", d_,
             inner_);
    file.bytes("blocks.0.attn.out_proj.alpha", dtype, {}, std::move(bytes));
    return scale_with(open(file));
  };
  const auto bytes = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  EXPECT_EQ(scale(DType::kF64, bytes(8.0)), 4.0f);
  EXPECT_EQ(scale(DType::kF32, bytes(8.0f)), 4.0f);
  EXPECT_EQ(scale(DType::kF16, bytes(to_f16(8.0f))), 4.0f);
  EXPECT_EQ(scale(DType::kBF16, bytes(to_bf16(8.0f))), 4.0f);
  EXPECT_EQ(scale(DType::kI64, bytes(std::int64_t{8})), 4.0f);
  EXPECT_EQ(scale(DType::kI32, bytes(std::int32_t{-8})), -4.0f);
  EXPECT_EQ(scale(DType::kI16, bytes(std::int16_t{8})), 4.0f);
  EXPECT_EQ(scale(DType::kI8, bytes(std::int8_t{8})), 4.0f);
  EXPECT_EQ(scale(DType::kU8, bytes(std::uint8_t{200})), 100.0f);
}

// The rank of the pair is 2.
TEST_F(Lora, AlphaOfAdapterSettings) {
  const auto scale = [&](const std::map<std::string, std::string>& metadata, bool stored = false) {
    LoraFile file;
    add_pair(file, "transformer.blocks.0.attn.out_proj.lora_A.weight",
             "transformer.blocks.0.attn.out_proj.lora_B.weight", d_, inner_);
    if (stored) file.values("transformer.blocks.0.attn.out_proj.alpha", {}, {2});
    file.metadata = metadata;
    return scale_with(open(file));
  };
  EXPECT_EQ(scale({{"lora_alpha", "8"}}), 4.0f);
  EXPECT_EQ(scale({{"ss_network_alpha", "8.0"}, {"ss_network_dim", "2"}}), 4.0f);
  EXPECT_EQ(scale({{"lora_alpha", "8"}, {"alpha_pattern", R"({"attn.out_proj": 32, "fc1": 4})"}}), 16.0f);
  EXPECT_EQ(scale({{"lora_alpha", "8"}, {"alpha_pattern", R"({"t_proj": 32})"}}), 4.0f)
      << "no part of a name";
  EXPECT_EQ(scale({{"alpha_pattern", R"({"out_proj": 6, "attn.out_proj": 32})"}}), 16.0f) << "the longest";
  EXPECT_EQ(scale({{"alpha_pattern", R"({"out_proj": 6})"}}, true), 1.0f) << "the tensor comes first";
  EXPECT_EQ(scale({{"network_alphas", R"({"transformer.blocks.0.attn.out_proj.alpha": 32})"}}), 16.0f);
  EXPECT_EQ(scale({{"networkAlphas", R"({"blocks.0.attn.out_proj": 32})"}}), 16.0f);
  const std::string peft = R"({"transformer.r": 2, "transformer.lora_alpha": 8, "text_encoder.lora_alpha": 1,
      "transformer.rank_pattern": {}, "transformer.alpha_pattern": {"blocks.0.attn.out_proj": 12}})";
  EXPECT_EQ(scale({{"lora_adapter_metadata", peft}}), 6.0f);
  EXPECT_EQ(scale({{"lora_adapter_metadata", R"({"transformer.lora_alpha": 8})"}}), 4.0f);
  EXPECT_EQ(scale({{"lora_alpha", "8"}, {"use_rslora", "true"}}), static_cast<float>(8 / std::sqrt(2.0)));
  EXPECT_EQ(scale({{"lora_alpha", "8"}, {"alpha_pattern", R"({"out_proj": 6})"}, {"baked_scale", "4"}}),
            1.0f);
}

TEST_F(Lora, WhatDoesNotApplyIsListed) {
  LoraFile file;
  add_pair(file, "blocks.0.attn.out_proj.lora_A.weight", "blocks.0.attn.out_proj.lora_B.weight", d_, inner_);
  add_pair(file, "blocks.0.adaln_proj.linear.lora_A.weight", "blocks.0.adaln_proj.linear.lora_B.weight",
           18 * d_, 2688);
  add_pair(file, "blocks.99.attn.out_proj.lora_A.weight", "blocks.99.attn.out_proj.lora_B.weight", d_,
           inner_);
  add_pair(file, "blocks.0.mlp.fc2.lora_A.weight", "blocks.0.mlp.fc2.lora_B.weight", d_ + 1, f_);
  file.random("blocks.0.mlp.fc2.diff_b", {d_}, 1);
  file.random("some.other", {3}, 1);
  const LoraReport report = open(file)->reports()[0];
  EXPECT_EQ(report.applied, 1);
  EXPECT_EQ(report.total, 6);
  const std::string text = report.text();
  for (const char* part :
       {"1 of 6 applied", "blocks.0.adaln_proj.linear (made for the full time embedding of 2688",
        "blocks.99.attn.out_proj (no linear layer of this network)", "blocks.0.mlp.fc2 (",
        "blocks.0.mlp.fc2.diff_b (the layer has no bias)", "some.other (no part of a LoRA that is known)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(Lora, AdalnOfItsOwnFormAndBiases) {
  for (const Form form : {Form::kCurve, Form::kFull}) {
    const spec::ModelSpec spec = base(form).spec();
    LoraFile file;
    add_pair(file, "blocks.0.adaln_proj.linear.lora_A.weight", "blocks.0.adaln_proj.linear.lora_B.weight",
             18 * spec.hidden, spec.time_dim);
    file.values("blocks.0.adaln_proj.linear.diff_b", {18 * spec.hidden},
                std::vector<float>(static_cast<std::size_t>(18 * spec.hidden), 0.25f));
    const auto set = open(file, 2);
    EXPECT_EQ(set->reports()[0].applied, 2);
    std::vector<float> bias(static_cast<std::size_t>(18 * spec.hidden), 1.0f);
    set->find("blocks.0.adaln_proj.linear")->add_to_bias(bias);
    for (const float v : bias) ASSERT_EQ(v, 1.5f);
  }
}

TEST_F(Lora, OtherAdaptersAreRefused) {
  for (const auto& [suffix, reason] : {std::pair{".dora_scale", "DoRA"},
                                       {".lora_magnitude_vector.weight", "DoRA"},
                                       {".hada_w1_a", "LoHa"},
                                       {".lokr_w1", "LoKr"},
                                       {".oft_blocks", "OFT"},
                                       {".lora_mid.weight", "middle factor"},
                                       {".diff", "whole difference"},
                                       {".set_weight", "replace"},
                                       {".reshape_weight", "head bank"},
                                       {".lora_B.bias", "bias of B"}}) {
    LoraFile file;
    const std::string module = "blocks.0.attn.out_proj";
    add_pair(file, module + ".lora_A.weight", module + ".lora_B.weight", d_, inner_);
    file.random(module + suffix, {3}, 1);
    expect_refused(file, module + suffix, reason);
  }
}

TEST_F(Lora, BrokenFilesAreRefused) {
  const std::string a = "blocks.0.attn.out_proj.lora_A.weight", b = "blocks.0.attn.out_proj.lora_B.weight";
  const auto expect = [&](const std::string& key, const std::string& reason, auto fill) {
    LoraFile file;
    fill(file);
    expect_refused(file, key, reason);
  };
  expect(a, "A of a pair without its B", [&](LoraFile& f) { f.random(a, {2, inner_}, 1); });
  expect(b, "B of a pair without its A", [&](LoraFile& f) { f.random(b, {d_, 2}, 1); });
  expect(b, "B has rank 3, A 2", [&](LoraFile& f) {
    f.random(a, {2, inner_}, 1);
    f.random(b, {d_, 3}, 1);
  });
  expect(a, "expected a matrix, got shape [2,", [&](LoraFile& f) {
    f.random(a, {2, inner_, 1, 1}, 1);
    f.random(b, {d_, 2}, 1);
  });
  expect(a, "dtype must be BF16, F16 or F32", [&](LoraFile& f) {
    f.bytes(a, DType::kI8, {2, inner_}, std::string(static_cast<std::size_t>(2 * inner_), 'x'));
    f.random(b, {d_, 2}, 1);
  });
  expect("blocks.0.attn.out_proj.alpha", "alpha is nan", [&](LoraFile& f) {
    add_pair(f, a, b, d_, inner_);
    f.values("blocks.0.attn.out_proj.alpha", {}, {std::numeric_limits<float>::quiet_NaN()});
  });
  expect("blocks.0.attn.out_proj.alpha", "expected one value", [&](LoraFile& f) {
    add_pair(f, a, b, d_, inner_);
    f.values("blocks.0.attn.out_proj.alpha", {2}, {1, 2});
  });
  expect("__metadata__.alpha", "expected a number", [&](LoraFile& f) {
    add_pair(f, a, b, d_, inner_);
    f.metadata["alpha"] = "eight";
  });
  expect("given twice", "blocks.0.attn.out_proj", [&](LoraFile& f) {
    add_pair(f, a, b, d_, inner_);
    f.random("blocks.0.attn.out_proj.lora_down.weight", {2, inner_}, 1);
  });
  expect("nothing of this LoRA applies", "blocks.77.attn.out_proj", [&](LoraFile& f) {
    add_pair(f, "blocks.77.attn.out_proj.lora_A.weight", "blocks.77.attn.out_proj.lora_B.weight", d_, inner_);
  });
}

TEST(LoraDraw, HasTheNumbersOfTheDescription) {
  const std::uint32_t seed = draw_seed("diffusion_model.blocks.0.attn.qkv_proj.weight");
  EXPECT_EQ(seed, 493214495u);
  EXPECT_EQ(draw(seed, 0), 0.4433978199958801f);
  EXPECT_EQ(draw(seed, 1), 0.517861008644104f);
  EXPECT_EQ(draw(seed, 2), 0.4019865393638611f);
  EXPECT_EQ(round_to<BF16>(draw(seed, 0)), 0.443359375f);
}

// The numbers that are drawn are the neighbours, as often as they are near.
TEST(LoraDraw, SmallFloatsBecomeTheirNeighbours) {
  EXPECT_EQ(drawn_small<E4M3>(1.0f, 0.99f), 1.0f);
  EXPECT_EQ(drawn_small<E4M3>(1.03f, 0.5f), 1.0f);
  EXPECT_EQ(drawn_small<E4M3>(1.03f, 0.9f), 1.125f);
  EXPECT_EQ(drawn_small<E4M3>(-1.03f, 0.9f), -1.125f);
  EXPECT_EQ(drawn_small<E4M3>(0x1p-10f, 0.75f), 0x1p-9f);
  EXPECT_EQ(drawn_small<E4M3>(0x1p-10f, 0.25f), 0.0f);
  EXPECT_EQ(drawn_small<E4M3>(1e9f, 0.5f), 448.0f);
  EXPECT_EQ(drawn_small<E2M1>(5.0f, 0.6f), 6.0f);
  EXPECT_EQ(drawn_small<E2M1>(5.0f, 0.4f), 4.0f);
  double sum = 0;
  constexpr int kDraws = 1 << 16;
  for (int i = 0; i < kDraws; ++i) sum += drawn_small<E2M1>(2.3f, draw(1, static_cast<std::uint64_t>(i)));
  EXPECT_NEAR(sum / kDraws, 2.3, 4 * 0.5 / std::sqrt(kDraws));  // four deviations; one draw's is below 0.5
}

}  // namespace
}  // namespace h3s::checkpoint
