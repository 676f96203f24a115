// Rows in the wrong order are told from the weights where they have what training leaves, in every format;
// weights without it, or damaged ones, never give a warning.
#include "checkpoint/row_order.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/convert.h"
#include "checkpoint/generator.h"
#include "checkpoint/parts.h"
#include "checkpoint/row_map.h"
#include "checkpoint/synth.h"
#include "file_fixtures.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

using enum WeightFormat;

constexpr int kBlocks = 4;

spec::ModelSpec spec_of(std::int64_t heads) {
  spec::ModelSpec spec = small_spec(Form::kFull);
  spec.hidden = 256;
  spec.heads = heads;
  spec.ffn = 512;
  return spec;
}

// What training would leave, of adjustable size, on top of random weights.
struct Traits {
  double sizes = 0;      // difference of q, k and v rows, as the logarithm of their size
  double heads = 0;      // the same of one head and the next, whatever the kind
  double profile = 0;    // of q and k rows: fast dimensions larger than slow ones
  double coherence = 0;  // share of a common direction in gate rows
  double common = 0;     // share of a common direction in all fc1 rows
};

float noise(std::uint64_t stream, std::int64_t i) {
  return 2.0f * (static_cast<float>(random_bits24(stream, static_cast<std::uint64_t>(i))) * 0x1p-24f) - 1.0f;
}

double row_factor(std::int64_t row, std::int64_t heads, std::uint64_t stream, const Traits& traits) {
  const std::int64_t kind = row / (128 * heads), d = row % 128;
  double log_size = traits.sizes * static_cast<double>(kind) + traits.heads * noise(stream, row / 128);
  if (kind < 2 && d < 96) log_size += d % 48 < 24 ? traits.profile : -traits.profile;
  return std::exp(log_size);
}

class RowOrders : public testing::Test {
 protected:
  // A bf16 checkpoint with the traits, its rows stored as `stored` says.
  std::string write(const Traits& traits, const StoredRows& stored = {}, std::int64_t heads = 12) {
    const spec::ModelSpec spec = spec_of(heads);
    const std::string path = directory_.file("model");
    write_synthetic_checkpoint(path, {.spec = spec, .seed = 11}, nullptr);
    ModelFile file(io::SafetensorsReader::open(path));
    for (const Part& part : model_parts(spec)) {
      if (!is_linear(part.kind)) continue;
      const bool qkv = part.name.ends_with("attn.qkv_proj"), fc1 = part.name.ends_with("mlp.fc1");
      if (!qkv && !fc1) continue;
      std::vector<float> values = shaped(part, spec, traits, qkv);
      std::vector<float> placed(values.size());
      const RowMap map = row_map(part.name, spec, stored);
      const std::int64_t k = part.shape[1];
      for (std::int64_t r = 0; r < part.shape[0]; ++r)
        std::copy_n(values.begin() + r * k, k, placed.begin() + map.row(r) * k);
      file.set_floats(part.key(), part.shape, placed);
    }
    file.write(path);
    return path;
  }

  OrderVerdict qkv(const std::string& path) { return qkv_order(Checkpoint::open(path), kBlocks); }
  OrderVerdict fc1(const std::string& path) { return fc1_order(Checkpoint::open(path), kBlocks); }

  // The same weights in another format, rows left where they are.
  std::string quantised(const std::string& path, WeightFormat format) {
    const std::string out = directory_.file("quantised");
    convert_checkpoint(Checkpoint::open(path), out, {.rules = block_rules(format)}, nullptr);
    return out;
  }

  TempDir directory_;

 private:
  static std::vector<float> shaped(const Part& part, const spec::ModelSpec& spec, const Traits& traits,
                                   bool qkv) {
    const std::int64_t n = part.shape[0], k = part.shape[1];
    const std::uint64_t stream = fnv1a64(part.name);
    std::vector<float> values(static_cast<std::size_t>(n * k));
    TensorGenerator::weight(part.key(), part.shape, 11).values(0, n * k, values.data());
    for (std::int64_t r = 0; r < n; ++r) {
      const double factor = qkv ? row_factor(r, spec.heads, stream, traits) : 1;
      const double shared = qkv ? 0 : traits.common + (r < spec.ffn ? traits.coherence : 0);
      for (std::int64_t i = 0; i < k; ++i) {
        float& v = values[static_cast<std::size_t>(r * k + i)];
        v = static_cast<float>(factor * v +
                               shared * noise(stream + 1, i) / std::sqrt(static_cast<double>(k)));
      }
    }
    return values;
  }
};

const Traits kTrained{.sizes = 0.2, .heads = 0.2, .profile = 0.05, .coherence = 0.4};

TEST_F(RowOrders, RandomWeightsTellNothing) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5})
    for (const WeightFormat format : {kBF16, kInt8Tensorwise, kNvfp4, kAsymW4A8}) {
      const std::string path = directory_.file("random");
      write_synthetic_checkpoint(path, {.spec = spec_of(12), .format = format, .seed = seed}, nullptr);
      EXPECT_EQ(qkv(path).order, RowOrder::kUnclear) << seed << weight_format_name(format);
      EXPECT_EQ(fc1(path).order, RowOrder::kUnclear) << seed << weight_format_name(format);
    }
}

TEST_F(RowOrders, TrainedTraitsInOrder) {
  const std::string path = write(kTrained);
  EXPECT_EQ(qkv(path).order, RowOrder::kExpected);
  EXPECT_EQ(fc1(path).order, RowOrder::kExpected);
  EXPECT_EQ(qkv(path).blocks, 3);  // all there are
  EXPECT_GT(qkv(path).confidence, 0.999);
  EXPECT_GT(fc1(path).confidence, 0.999);
}

TEST_F(RowOrders, OutOfOrderInEveryFormat) {
  const std::string path = write(kTrained, {.interleaved_qkv = true, .up_first_fc1 = true});
  EXPECT_EQ(qkv(path).order, RowOrder::kOther);
  EXPECT_EQ(fc1(path).order, RowOrder::kOther);
  for (const WeightFormat format :
       {kInt8Tensorwise, kFloat8E4M3, kFloat8E5M2, kMxfp8, kNvfp4, kAsymW4A8, kConvrotW4A4}) {
    const std::string same = quantised(path, format);
    EXPECT_EQ(qkv(same).order, RowOrder::kOther) << weight_format_name(format);
    EXPECT_EQ(fc1(same).order, RowOrder::kOther) << weight_format_name(format);
    EXPECT_GT(qkv(same).confidence, 0.999);
  }
}

TEST_F(RowOrders, ConvertingPutsThemInOrder) {
  const StoredRows stored{.interleaved_qkv = true, .up_first_fc1 = true};
  const std::string path = write(kTrained, stored), out = directory_.file("ordered");
  convert_checkpoint(Checkpoint::open(path), out, {.stored = stored}, nullptr);
  EXPECT_EQ(qkv(out).order, RowOrder::kExpected);
  EXPECT_EQ(fc1(out).order, RowOrder::kExpected);
}

TEST_F(RowOrders, OneTraitIsEnough) {
  const StoredRows stored{.interleaved_qkv = true};
  EXPECT_EQ(qkv(write({.sizes = 0.2, .heads = 0.2}, stored)).order, RowOrder::kOther);
  EXPECT_EQ(qkv(write({.heads = 0.2, .profile = 0.1}, stored)).order, RowOrder::kOther);
}

// Heads that differ among themselves, in any order, and rows with a direction in common are no sign.
TEST_F(RowOrders, OtherStructureTellsNothing) {
  EXPECT_EQ(qkv(write({.heads = 0.5})).order, RowOrder::kUnclear);
  EXPECT_EQ(fc1(write({.common = 0.5})).order, RowOrder::kUnclear);
  EXPECT_EQ(fc1(write({.coherence = 0.01})).order, RowOrder::kUnclear);
}

TEST_F(RowOrders, FewHeadsAndFewRowsTellNothing) {
  EXPECT_EQ(qkv(write(kTrained, {.interleaved_qkv = true}, 7)).order, RowOrder::kUnclear);
  const std::string path = directory_.file("tiny");
  write_synthetic_checkpoint(path, {.spec = small_spec(Form::kCurve), .seed = 1}, nullptr);
  EXPECT_EQ(qkv(path).order, RowOrder::kUnclear);
  EXPECT_EQ(fc1(path).order, RowOrder::kUnclear);
}

// Zeros, as in a file that was not fetched whole, and values that are no numbers are no reason either.
TEST_F(RowOrders, DamagedWeights) {
  const std::string path = write({});
  for (const std::string layer : {"blocks.0.attn.qkv_proj", "blocks.0.mlp.fc1"}) {
    ModelFile file(io::SafetensorsReader::open(path));
    const auto decl = file.decl(layer + ".weight");
    file.set(layer + ".weight", decl.dtype, decl.shape, "");
    file.write(directory_.file("zeros"));
    file.set(layer + ".weight", DType::kF8E4M3, decl.shape, std::string(4 * 256 * 1024, '\x7F'));
    file.set_floats(layer + ".weight_scale", {}, {0.01f});
    file.set_text(layer + ".comfy_quant", R"({"format":"float8_e4m3fn"})");
    file.write(directory_.file("nan"));
    for (const char* name : {"zeros", "nan"}) {
      EXPECT_NE(qkv(directory_.file(name)).order, RowOrder::kOther) << name;
      EXPECT_NE(fc1(directory_.file(name)).order, RowOrder::kOther) << name;
    }
  }
}

TEST_F(RowOrders, Words) {
  const auto said = [&](const std::string& path) {
    return describe_row_orders(Checkpoint::open(path), kBlocks);
  };
  const std::vector<Finding> wrong = said(write(kTrained, {true, true}));
  ASSERT_EQ(wrong.size(), 2u);
  EXPECT_EQ(wrong[0].severity, Severity::kWarning);
  EXPECT_NE(wrong[0].text.find("interleaved per head"), std::string::npos) << wrong[0].text;
  EXPECT_NE(wrong[0].text.find("confidence over 99.99 %"), std::string::npos) << wrong[0].text;
  EXPECT_NE(wrong[0].text.find("made-up weights only"), std::string::npos) << wrong[0].text;
  EXPECT_NE(wrong[0].text.find("convert --qkv interleaved"), std::string::npos) << wrong[0].text;
  EXPECT_NE(wrong[1].text.find("convert --fc1 up-first"), std::string::npos) << wrong[1].text;
  for (const Finding& finding : said(write(kTrained))) EXPECT_EQ(finding.severity, Severity::kNote);
  for (const Finding& finding : said(write({}))) {
    EXPECT_EQ(finding.severity, Severity::kNote);
    EXPECT_NE(finding.text.find("cannot be told"), std::string::npos) << finding.text;
  }
}

}  // namespace
}  // namespace h3s::checkpoint
