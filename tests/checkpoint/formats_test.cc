// Every quantised weight format: the worked examples, what the encoders make at odd sizes, and every refusal.
#include "checkpoint/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/encode.h"
#include "checkpoint/generator.h"
#include "checkpoint/swizzle.h"
#include "file_fixtures.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

struct Tensor {
  std::string suffix;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

std::string float_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// One layer "l" [n, k] in a file of its own, bound.
class Layer {
 public:
  Layer(std::int64_t n, std::int64_t k, const QuantTag& tag, const std::vector<Tensor>& tensors)
      : part_{"l", PartKind::kQkv, {n, k}, false}, tag_(tag), file_(write(tensors)) {
    LayerContext context{.file = &file_, .part = &part_, .layer = "l", .tag = &tag_};
    source_ = {.key = "l.weight", .n = n, .k = k, .weight = &file_.at("l.weight")};
    format_of(context, *source_.weight).bind(context, source_);
  }

  const LinearSource& source() const { return source_; }
  std::vector<float> operand(std::int64_t row) const {
    const StoredLayer stored(file_, source_);
    const RowCodec& rows = format_row(source_.format).rows;
    const auto k = static_cast<std::size_t>(source_.k);
    std::vector<float> out;
    if (rows.codes != nullptr) {
      std::vector<std::int8_t> codes(k);
      rows.codes(stored, row, codes.data());
      out.assign(codes.begin(), codes.end());
    } else {
      std::vector<BF16> values(k);
      rows.values(stored, row, values.data());
      for (const BF16 v : values) out.push_back(to_float(v));
    }
    return out;
  }
  std::vector<float> dequantized(std::int64_t row, DType type = DType::kF32) const {
    std::vector<float> out(static_cast<std::size_t>(source_.k));
    format_row(source_.format).rows.dequantize(StoredLayer(file_, source_), row, type, out.data());
    return out;
  }

 private:
  io::SafetensorsReader write(const std::vector<Tensor>& tensors) const {
    std::vector<io::TensorDecl> decls;
    for (const Tensor& t : tensors) decls.push_back({"l." + t.suffix, t.dtype, t.shape});
    io::SafetensorsWriter writer(directory_.file("layer"), decls);
    for (const Tensor& t : tensors) writer.write(t.bytes.data(), t.bytes.size());
    writer.finish();
    return io::SafetensorsReader::open(directory_.file("layer"));
  }

  TempDir directory_;
  Part part_;
  QuantTag tag_;
  io::SafetensorsReader file_;
  LinearSource source_;
};

using Floats = std::vector<float>;

Floats first(Floats values, std::size_t count) {
  values.resize(count);
  return values;
}

// ---- worked examples ----

TEST(Formats, Float8) {
  const Layer layer(1, 4, {.format = "float8_e4m3fn"},
                    {{"weight", DType::kF8E4M3, {1, 4}, "\x38\xB4\x52\x2E"},
                     {"weight_scale", DType::kF32, {}, float_bytes({0.01f})}});
  EXPECT_EQ(layer.operand(0), (Floats{1, -0.75f, 10, 0.4375f}));
  EXPECT_EQ(layer.source().activation, Activation::kE4M3);
  EXPECT_EQ(layer.source().input_scale, 1.0f);
  Floats rounded = layer.dequantized(0);
  for (float& v : rounded) v = round_to<BF16>(v);
  EXPECT_EQ(rounded, (Floats{0.010009765625f, -0.00750732421875f, 0.10009765625f, 0.004364013671875f}));
}

TEST(Formats, Float8OptionsOfTheLayer) {
  const std::vector<Tensor> tensors{{"weight", DType::kF8E5M2, {1, 2}, std::string("\x3C\xC0", 2)},
                                    {"weight_scale", DType::kF32, {1}, float_bytes({2})},
                                    {"input_scale", DType::kF32, {}, float_bytes({0.25f})}};
  const Layer scaled(1, 2, {.format = "float8_e5m2"}, tensors);
  EXPECT_EQ(scaled.operand(0), (Floats{1, -2}));
  EXPECT_EQ(scaled.dequantized(0), (Floats{2, -4}));
  EXPECT_EQ(scaled.source().activation, Activation::kE5M2);
  EXPECT_EQ(scaled.source().input_scale, 0.25f);
  const Layer full(1, 2, {.format = "float8_e5m2", .full_precision_matmul = true}, tensors);
  EXPECT_EQ(full.source().activation, Activation::kNone);
}

TEST(Formats, Swizzle) {
  constexpr std::int64_t kColumns = 336;
  EXPECT_EQ(swizzled_offset(0, 0, kColumns), 0);
  EXPECT_EQ(swizzled_offset(1, 0, kColumns), 16);
  EXPECT_EQ(swizzled_offset(32, 0, kColumns), 4);
  EXPECT_EQ(swizzled_offset(0, 4, kColumns), 512);
  EXPECT_EQ(swizzled_offset(127, 3, kColumns), 511);
  EXPECT_EQ(swizzled_offset(128, 0, kColumns), 43008);
  EXPECT_EQ(swizzled_offset(200, 335, kColumns), 85643);
}

TEST(Formats, Mxfp8) {
  std::string scales(128 * 4, '\0');
  scales[0] = 121;
  const Layer layer(
      1, 3, {.format = "mxfp8"},
      {{"weight", DType::kF8E4M3, {32, 32}, std::string("\x77\xB2\x68", 3) + std::string(1021, '\0')},
       {"weight_scale", DType::kF8E8M0, {128, 4}, scales}});
  EXPECT_EQ(layer.operand(0), (Floats{3.75f, -0.009765625f, 1}));
  EXPECT_EQ(layer.dequantized(0), layer.operand(0));
  EXPECT_EQ(layer.source().activation, Activation::kMxfp8);
}

TEST(Formats, Nvfp4) {
  std::string scales(128 * 4, '\0');
  scales[0] = 0x72;
  const Layer layer(
      1, 16, {.format = "nvfp4"},
      {{"weight", DType::kU8, {16, 8}, "\xEE\xDC\xBA\x91\x23\x45\x66\x77" + std::string(120, '\0')},
       {"weight_scale", DType::kF8E4M3, {128, 4}, scales},
       {"weight_scale_2", DType::kF32, {}, float_bytes({0.00018601190822664648f})}});
  const Floats numbers{-4, -4, -3, -2, -1.5f, -1, -0.5f, 0.5f, 1, 1.5f, 2, 3, 4, 4, 6, 6};
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(layer.operand(0)[i], 160 * numbers[i]) << i;
  EXPECT_EQ(layer.dequantized(0)[0], -0.1190476194f);
  EXPECT_EQ(layer.source().activation, Activation::kNvfp4);
  EXPECT_EQ(layer.source().input_scale, 0.0f);
}

Floats w4a8_codes(DType scale_type, const std::string& scale, bool codebook) {
  Floats book;
  for (const float level :
       {-0.980602f, -0.794529f, -0.638165f, -0.500986f, -0.377321f, -0.263187f, -0.155210f, -0.050720f,
        0.052541f, 0.156985f, 0.265284f, 0.379533f, 0.502636f, 0.638953f, 0.794876f, 0.980671f})
    book.push_back(level);
  std::vector<Tensor> tensors{
      {"weight", DType::kI8, {1, 8}, std::string("\x0F\x78\x3C", 3) + std::string(5, '\0')},
      {"weight_s_rel", scale_type, {1, 1}, scale},
      {"weight_s_channel", DType::kF32, {1}, float_bytes({0.5f})}};
  if (codebook) tensors.push_back({"weight_codebook", DType::kF32, {16}, float_bytes(book)});
  return first(Layer(1, 16, {.format = "asym_w4a8_int8", .convrot_group = 4}, tensors).operand(0), 6);
}

TEST(Formats, W4A8) {
  EXPECT_EQ(w4a8_codes(DType::kF8E4M3, "\x6E", true), (Floats{110, -110, 6, -6, 56, -56}));
  EXPECT_EQ(w4a8_codes(DType::kU8, "\x6E", true), (Floats{110, -110, 6, -6, 56, -56}));
  EXPECT_EQ(w4a8_codes(DType::kF32, float_bytes({16}), false), (Floats{112, -127, 0, -16, 64, -80}));
}

TEST(Formats, W4A4) {
  const std::vector<Tensor> tensors{{"weight", DType::kI8, {1, 32}, "\xE4\x07" + std::string(30, '\0')},
                                    {"weight_scale", DType::kF32, {1}, float_bytes({0.5f})}};
  const Layer layer(1, 64, {.format = "convrot_w4a4", .convrot_group = 4}, tensors);
  EXPECT_EQ(first(layer.operand(0), 5), (Floats{4, -2, 7, 0, 0}));
  EXPECT_EQ(layer.source().activation, Activation::kInt4);
  // (4, -2, 7, 0) / 2 rotated: half of the sums with the rows of H4.
  EXPECT_EQ(first(layer.dequantized(0), 4), (Floats{2.25f, -1.25f, 3.25f, 0.25f}));
  const Layer eight(1, 64, {.format = "convrot_w4a4", .convrot_group = 4, .linear_dtype = "int8"}, tensors);
  EXPECT_EQ(eight.source().activation, Activation::kInt8);
}

// ---- encoders ----

// Rows and columns that no padding divides, read back through the file's own bytes.
TEST(Formats, EncodedWeightsComeBack) {
  struct Case {
    WeightFormat format;
    std::int64_t n, k;
    double bound;  // relative error of a row, root mean square
  };
  // e4m3: half a step of 2^-3; e5m2: of 2^-2; e2m1 under a rounded scale: half of the largest step, 2, of
  // 6, and 2^-4 for the scale; 4 bits: half a step of 1/7 of the largest value, which a row of this
  // distribution, rotated, holds within four times its root mean square.
  for (const Case& c :
       {Case{WeightFormat::kFloat8E4M3, 5, 33, 1.0 / 16}, Case{WeightFormat::kFloat8E5M2, 3, 20, 1.0 / 8},
        Case{WeightFormat::kMxfp8, 33, 72, 1.0 / 16}, Case{WeightFormat::kNvfp4, 130, 72, 1.0 / 6 + 1.0 / 16},
        Case{WeightFormat::kAsymW4A8, 3, 256, 0.15}, Case{WeightFormat::kConvrotW4A4, 3, 256, 4.0 / 14},
        Case{WeightFormat::kInt8Tensorwise, 3, 64, 0.02}}) {
    const std::int64_t group = synthetic_rotate_group(c.k);
    const auto generator = TensorGenerator::weight("mlp.fc1.weight", {c.n, c.k}, 3);
    std::vector<BF16> w(static_cast<std::size_t>(c.n * c.k));
    generator.stored(DType::kBF16, 0, c.n * c.k, reinterpret_cast<std::byte*>(w.data()));
    float largest = 0;
    for (const BF16 v : w) largest = std::max(largest, std::abs(to_float(v)));
    LayerEncoder encoder(c.format, c.n, c.k, group, largest);
    std::string bytes(static_cast<std::size_t>(encoder.stored_rows() * encoder.row_bytes()), '\0');
    std::vector<float> scratch(static_cast<std::size_t>(c.k));
    for (std::int64_t r = 0; r < c.n; ++r)
      encoder.encode_row(r, {w.data() + r * c.k, static_cast<std::size_t>(c.k)},
                         reinterpret_cast<std::byte*>(bytes.data()) + r * encoder.row_bytes(), scratch);
    const auto decls = encoder.tensors("l");
    std::vector<Tensor> tensors{{"weight", decls[0].dtype, decls[0].shape, bytes}};
    for (const auto& companion : encoder.companions())
      tensors.push_back({companion.suffix,
                         companion.dtype,
                         companion.shape,
                         {reinterpret_cast<const char*>(companion.bytes.data()), companion.bytes.size()}});
    const Layer layer(
        c.n, c.k, {.format = weight_format_name(c.format), .convrot = true, .convrot_group = group}, tensors);
    for (std::int64_t r = 0; r < c.n; ++r) {
      const Floats back = layer.dequantized(r);
      double error = 0, norm = 0;
      for (std::int64_t i = 0; i < c.k; ++i) {
        const double want = to_float(w[static_cast<std::size_t>(r * c.k + i)]);
        error += std::pow(back[static_cast<std::size_t>(i)] - want, 2);
        norm += want * want;
      }
      EXPECT_LE(std::sqrt(error / norm), c.bound) << weight_format_name(c.format) << " row " << r;
    }
  }
}

TEST(Formats, WidthsThatAFormatCannotHold) {
  EXPECT_THROW(LayerEncoder(WeightFormat::kConvrotW4A4, 4, 96, 4, 0), Error);
  EXPECT_THROW(LayerEncoder(WeightFormat::kAsymW4A8, 4, 24, 4, 0), Error);
  EXPECT_THROW(LayerEncoder(WeightFormat::kBF16, 4, 64, 4, 0), Error);
}

// ---- whole files ----

const std::string kOut = "blocks.1.attn.out_proj";  // [32, 128]

class FormatFiles : public testing::Test {
 protected:
  Checkpoint open(const ModelFile& file) {
    file.write(path_);
    return Checkpoint::open(path_);
  }
  void refused(const ModelFile& file, Status status, const std::vector<std::string>& pieces) {
    file.write(path_);
    expect_refused([&] { Checkpoint::open(path_); }, status, path_, pieces);
  }
  void bad(const ModelFile& file, const std::vector<std::string>& pieces) {
    refused(file, Status::kBadFile, pieces);
  }
  // out_proj of block 1 as a W4A4 layer with this tag.
  static ModelFile w4a4_file(const std::string& tag) {
    ModelFile file;
    file.set(kOut + ".weight", DType::kI8, {32, 64}, "");
    file.set_floats(kOut + ".weight_scale", {32}, std::vector<float>(32, 0.5f));
    file.set_text(kOut + ".comfy_quant", tag);
    return file;
  }

  TempDir directory_;
  std::string path_ = directory_.file("model.safetensors");
};

constexpr WeightFormat kSynthetic[] = {WeightFormat::kFloat8E4M3, WeightFormat::kFloat8E5M2,
                                       WeightFormat::kMxfp8, WeightFormat::kNvfp4, WeightFormat::kAsymW4A8};

TEST_F(FormatFiles, Load) {
  for (const WeightFormat format : kSynthetic)
    for (const Form form : {Form::kCurve, Form::kFull}) {
      const Checkpoint checkpoint = open(ModelFile(form, format, "model.diffusion_model."));
      EXPECT_EQ(checkpoint.linear(kOut).format, format);
      EXPECT_TRUE(checkpoint.spec() == small_spec(form)) << weight_format_name(format);
      EXPECT_TRUE(checkpoint.quantised());
    }
  const Checkpoint w4a4 = open(w4a4_file(R"({"format":"convrot_w4a4","convrot_groupsize":64})"));
  EXPECT_EQ(w4a4.linear(kOut).format, WeightFormat::kConvrotW4A4);
  EXPECT_EQ(w4a4.linear(kOut).rotate_group, 64);
}

TEST_F(FormatFiles, TagsFromTheMetadata) {
  ModelFile file(Form::kCurve, WeightFormat::kFloat8E4M3);
  std::string layers;
  for (const std::string& key : file.keys())
    if (key.ends_with(".comfy_quant")) {
      file.erase(key);
      layers +=
          fmt::format(R"({}"{}":{{"format":"float8_e4m3fn","params":{{"full_precision_matrix_mult":true}}}})",
                      layers.empty() ? "" : ",", key.substr(0, key.rfind('.')));
    }
  file.metadata["_quantization_metadata"] = "{\"layers\":{" + layers + "}}";
  const Checkpoint checkpoint = open(file);
  EXPECT_EQ(checkpoint.linear(kOut).format, WeightFormat::kFloat8E4M3);
  EXPECT_EQ(checkpoint.linear(kOut).activation, Activation::kNone);
}

// `scaled_fp8`: no tags, older names of the scales.
ModelFile legacy_file(DType marker, std::int64_t elements) {
  const DType weight = marker == DType::kF8E5M2 ? DType::kF8E5M2 : DType::kF8E4M3;
  ModelFile file;
  file.set("scaled_fp8", marker, {elements}, "");
  file.set(kOut + ".weight", weight, {32, 128}, "");
  file.set_floats(kOut + ".scale_weight", {}, {0.5f});
  file.set_floats(kOut + ".scale_input", {}, {4.0f});
  return file;
}

TEST_F(FormatFiles, LegacyFloat8) {
  for (const DType marker : {DType::kF8E4M3, DType::kF32, DType::kF8E5M2}) {
    const LinearSource source = open(legacy_file(marker, 0)).linear(kOut);
    EXPECT_EQ(source.format,
              marker == DType::kF8E5M2 ? WeightFormat::kFloat8E5M2 : WeightFormat::kFloat8E4M3);
    EXPECT_EQ(source.tensor_scale, 0.5f);
    EXPECT_EQ(source.input_scale, 4.0f);
    EXPECT_NE(source.activation, Activation::kNone);
  }
  EXPECT_EQ(open(legacy_file(DType::kF8E4M3, 2)).linear(kOut).activation, Activation::kNone);
  ModelFile plain = legacy_file(DType::kF8E4M3, 0);
  plain.set(kOut + ".weight", DType::kBF16, {32, 128}, "");
  bad(plain, {kOut + ".weight", "dtype must be F8_E4M3 as its tag says, got BF16"});
  ModelFile wrong = legacy_file(DType::kF8E4M3, 0);
  wrong.set("scaled_fp8", DType::kI8, {2}, "");
  bad(wrong, {": scaled_fp8: ", "dtype must be F8_E4M3, F8_E5M2 or F32, got I8"});
  ModelFile zero = legacy_file(DType::kF8E4M3, 0);
  zero.set_floats(kOut + ".scale_weight", {}, {0.0f});
  bad(zero, {kOut + ".scale_weight", "scale 0 is 0"});
  ModelFile both = legacy_file(DType::kF8E4M3, 0);
  both.set_text(kOut + ".comfy_quant", R"({"format":"float8_e4m3fn"})");
  bad(both, {kOut + ".scale_weight", "contradicts the tag"});
}

// A packed text projection: its true width is twice the columns of its bytes.
TEST_F(FormatFiles, PackedTextProjection) {
  ModelFile file(Form::kCurve, WeightFormat::kNvfp4);
  file.set("condition_proj.weight", DType::kU8, {32, 8}, "");
  file.set("condition_proj.weight_scale", DType::kF8E4M3, {128, 4}, "");
  file.set_floats("condition_proj.weight_scale_2", {}, {0.5f});
  file.set_text("condition_proj.comfy_quant", R"({"format":"nvfp4"})");
  const Checkpoint checkpoint = open(file);
  EXPECT_EQ(checkpoint.spec().text_dim, 16);
  EXPECT_EQ(checkpoint.linear("condition_proj").k, 16);
}

TEST_F(FormatFiles, EveryCompanionIsRequired) {
  const std::vector<std::pair<WeightFormat, std::vector<std::string>>> required{
      {WeightFormat::kFloat8E4M3, {"weight_scale"}},
      {WeightFormat::kMxfp8, {"weight_scale"}},
      {WeightFormat::kNvfp4, {"weight_scale", "weight_scale_2"}},
      {WeightFormat::kAsymW4A8, {"weight_s_rel", "weight_s_channel"}}};
  for (const auto& [format, suffixes] : required)
    for (const std::string& suffix : suffixes) {
      ModelFile file(Form::kCurve, format);
      file.erase(kOut + "." + suffix);
      bad(file, {kOut + "." + suffix, "missing"});
    }
  ModelFile codebook(Form::kCurve, WeightFormat::kAsymW4A8);
  codebook.erase(kOut + ".weight_codebook");
  EXPECT_EQ(open(codebook).linear(kOut).codebook, nullptr);
}

TEST_F(FormatFiles, WrongShapes) {
  const auto reshaped = [](WeightFormat format, const std::string& suffix, std::vector<std::int64_t> shape) {
    ModelFile file(Form::kCurve, format);
    const std::string key = kOut + "." + suffix;
    file.set(key, file.decl(key).dtype, shape, "");
    return file;
  };
  bad(reshaped(WeightFormat::kFloat8E4M3, "weight", {32, 64}),
      {kOut + ".weight", "shape must be [32,128], got [32,64]"});
  bad(reshaped(WeightFormat::kFloat8E4M3, "weight_scale", {32, 1}),
      {kOut + ".weight_scale", "expected 1 or 1 values"});
  bad(reshaped(WeightFormat::kNvfp4, "weight", {32, 128}),
      {kOut + ".weight", "shape must be [32,64], got [32,128]"});
  bad(reshaped(WeightFormat::kNvfp4, "weight_scale", {32, 8}),
      {kOut + ".weight_scale", "shape must be [128,8], got [32,8]"});
  bad(reshaped(WeightFormat::kMxfp8, "weight_scale", {32, 4}),
      {kOut + ".weight_scale", "shape must be [128,4], got [32,4]"});
  bad(reshaped(WeightFormat::kAsymW4A8, "weight", {32, 128}),
      {kOut + ".weight", "shape must be [32,64], got [32,128]"});
  bad(reshaped(WeightFormat::kAsymW4A8, "weight_s_rel", {32, 4}),
      {kOut + ".weight_s_rel", "shape must be [32,8], got [32,4]"});
  bad(reshaped(WeightFormat::kAsymW4A8, "weight_s_channel", {31}),
      {kOut + ".weight_s_channel", "expected 1 or 32 values"});
  bad(reshaped(WeightFormat::kAsymW4A8, "weight_codebook", {8}),
      {kOut + ".weight_codebook", "shape must be [16], got [8]"});
}

TEST_F(FormatFiles, WrongDTypes) {
  const auto retyped = [](WeightFormat format, const std::string& suffix, DType dtype) {
    ModelFile file(Form::kCurve, format);
    const std::string key = kOut + "." + suffix;
    file.set(key, dtype, file.decl(key).shape, "");
    return file;
  };
  bad(retyped(WeightFormat::kFloat8E4M3, "weight", DType::kF8E5M2),
      {kOut + ".weight", "dtype must be F8_E4M3 as its tag says, got F8_E5M2"});
  bad(retyped(WeightFormat::kFloat8E4M3, "weight_scale", DType::kBF16),
      {kOut + ".weight_scale", "dtype must be F32, got BF16"});
  bad(retyped(WeightFormat::kMxfp8, "weight_scale", DType::kF8E4M3),
      {kOut + ".weight_scale", "dtype must be F8_E8M0, got F8_E4M3"});
  bad(retyped(WeightFormat::kNvfp4, "weight", DType::kI8),
      {kOut + ".weight", "dtype must be U8 as its tag says, got I8"});
  bad(retyped(WeightFormat::kNvfp4, "weight_scale", DType::kF8E8M0),
      {kOut + ".weight_scale", "dtype must be F8_E4M3, got F8_E8M0"});
  bad(retyped(WeightFormat::kAsymW4A8, "weight", DType::kU8),
      {kOut + ".weight", "dtype must be I8 as its tag says, got U8"});
  bad(retyped(WeightFormat::kAsymW4A8, "weight_s_rel", DType::kI8),
      {kOut + ".weight_s_rel", "dtype must be F8_E4M3, got I8"});
  bad(retyped(WeightFormat::kAsymW4A8, "weight_codebook", DType::kI32),
      {kOut + ".weight_codebook", "dtype must be F32, got I32"});
}

TEST_F(FormatFiles, ScalesThatAreNoScales) {
  const auto changed = [](WeightFormat format, const std::string& suffix, std::size_t at,
                          const std::string& bytes) {
    ModelFile file(Form::kCurve, format);
    const std::string key = kOut + "." + suffix;
    std::string all = file.bytes(key);
    all.replace(at, bytes.size(), bytes);
    file.set(key, file.decl(key).dtype, file.decl(key).shape, all);
    return file;
  };
  const std::string nan = float_bytes({std::numeric_limits<float>::quiet_NaN()}), zero = float_bytes({0.0f});
  bad(changed(WeightFormat::kFloat8E4M3, "weight_scale", 0, nan), {kOut + ".weight_scale", "scale 0 is nan"});
  bad(changed(WeightFormat::kNvfp4, "weight_scale_2", 0, zero), {kOut + ".weight_scale_2", "scale 0 is 0"});
  bad(changed(WeightFormat::kNvfp4, "weight_scale", 5, "\x7F"), {kOut + ".weight_scale", "scale 5 is nan"});
  bad(changed(WeightFormat::kNvfp4, "weight_scale", 6, "\xFF"), {kOut + ".weight_scale", "scale 6 is nan"});
  bad(changed(WeightFormat::kMxfp8, "weight_scale", 7, "\xFF"), {kOut + ".weight_scale", "scale 7 is nan"});
  bad(changed(WeightFormat::kAsymW4A8, "weight_s_rel", 9, "\xFF"), {kOut + ".weight_s_rel", "scale 9 is"});
  bad(changed(WeightFormat::kAsymW4A8, "weight_s_channel", 4, zero),
      {kOut + ".weight_s_channel", "scale 1 is 0"});
  bad(changed(WeightFormat::kAsymW4A8, "weight_codebook", 8, nan),
      {kOut + ".weight_codebook", "value 2 is nan"});
  ModelFile input(Form::kCurve, WeightFormat::kNvfp4);
  input.set_floats(kOut + ".input_scale", {}, {-1.0f});
  bad(input, {kOut + ".input_scale", "scale 0 is -1"});
}

TEST_F(FormatFiles, GroupsThatDoNotFit) {
  ModelFile w4a8(Form::kCurve, WeightFormat::kAsymW4A8);
  const auto retagged = [&](const std::string& fields) {
    w4a8.set_text(kOut + ".comfy_quant", R"({"format":"asym_w4a8_int8",)" + fields + "}");
    return w4a8;
  };
  bad(retagged(R"("group_size":24,"convrot_groupsize":64)"), {kOut + ".weight", "multiple of 16, got 24"});
  bad(retagged(R"("group_size":48,"convrot_groupsize":64)"),
      {kOut + ".weight", "group_size 48 and 16 must divide the 128 columns"});
  bad(retagged(R"("group_size":16)"), {kOut + ".weight", "256 does not divide the 128 columns"});
  bad(retagged(R"("group_size":"16")"), {kOut + ".comfy_quant", "group_size must be a positive integer"});
  bad(w4a4_file(R"({"format":"convrot_w4a4"})"), {kOut + ".weight", "256 does not divide the 128 columns"});
  bad(w4a4_file(R"({"format":"convrot_w4a4","convrot_groupsize":64,"linear_dtype":"int2"})"),
      {kOut + ".weight", "int4 or int8, got \"int2\""});
  bad(w4a4_file(R"({"format":"convrot_w4a4","convrot_groupsize":64,"linear_dtype":4})"),
      {kOut + ".comfy_quant", "linear_dtype must be a string"});
}

TEST_F(FormatFiles, InputFactors) {
  ModelFile file(Form::kCurve, WeightFormat::kNvfp4);
  const std::string key = kOut + ".pre_quant_scale";
  file.set(key, DType::kBF16, {128}, "");
  EXPECT_NE(open(file).linear(kOut).pre_scale, nullptr);
  file.set(key, DType::kBF16, {127}, "");
  bad(file, {key, "shape must be [128], got [127]"});
  file.set(key, DType::kI8, {128}, "");
  bad(file, {key, "dtype must be BF16, F16 or F32, got I8"});
  file.set(key, DType::kF32, {128}, "");
  file.set_text(kOut + ".comfy_quant", R"({"format":"nvfp4","full_precision_matrix_mult":true})");
  refused(file, Status::kUnsupported, {key, "full_precision_matrix_mult"});
}

TEST_F(FormatFiles, QuantisedIslands) {
  ModelFile file(Form::kCurve, WeightFormat::kFloat8E4M3);
  file.set("video_patch_proj.weight", DType::kF8E4M3, {32, 96}, "");
  file.set_floats("video_patch_proj.weight_scale", {}, {0.5f});
  file.set_text("video_patch_proj.comfy_quant", R"({"format":"float8_e4m3fn"})");
  refused(file, Status::kUnsupported, {"video_patch_proj.weight", "fp32 island"});
}

}  // namespace
}  // namespace h3s::checkpoint
