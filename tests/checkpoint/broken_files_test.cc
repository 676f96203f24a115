// Every kind of broken or foreign file that the format's rules name, one row each: refused, or where nothing
// structural is wrong warned of, in one line that names file, key and reason.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/report.h"
#include "checkpoint/synth.h"
#include "file_fixtures.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

using enum WeightFormat;

const std::string kQkv = "blocks.1.attn.qkv_proj", kOut = "blocks.1.attn.out_proj";
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

struct Broken {
  const char* what;
  Status status;
  std::vector<std::string> pieces;  // of the message: key and reason
  std::function<std::string()> bytes;
};

// ---- makers: the bytes of a file ----

std::string whole(const ModelFile& file) {
  const TempDir directory;
  file.write(directory.file("model"));
  return read_file(directory.file("model"));
}

using Spoil = std::function<void(ModelFile&)>;

std::function<std::string()> model(WeightFormat format, const Spoil& spoil) {
  return [=] {
    ModelFile file(Form::kCurve, format);
    spoil(file);
    return whole(file);
  };
}

std::function<std::string()> header(const std::string& json) {
  return [=] { return safetensors_bytes(json, "0123"); };
}

std::function<std::string()> raw(const std::string& bytes) {
  return [=] { return bytes; };
}

std::function<std::string()> floats(WeightFormat format, const std::string& key,
                                    const std::vector<std::int64_t>& shape, float value) {
  return model(format, [=](ModelFile& file) {
    std::int64_t count = 1;
    for (const std::int64_t d : shape) count *= d;
    file.set_floats(key, shape, std::vector<float>(static_cast<std::size_t>(count), value));
  });
}

std::function<std::string()> byte(WeightFormat format, const std::string& key, std::size_t at, char value) {
  return model(format, [=](ModelFile& file) {
    std::string bytes = file.bytes(key);
    bytes[at] = value;
    file.set(key, file.decl(key).dtype, file.decl(key).shape, bytes);
  });
}

std::function<std::string()> reshaped(WeightFormat format, const std::string& key, DType dtype,
                                      const std::vector<std::int64_t>& shape) {
  return model(format, [=](ModelFile& file) { file.set(key, dtype, shape, ""); });
}

std::function<std::string()> without(WeightFormat format, const std::string& key) {
  return model(format, [=](ModelFile& file) { file.erase(key); });
}

std::function<std::string()> tagged(const std::string& tag, DType dtype = DType::kU8) {
  return model(kInt8Tensorwise, [=](ModelFile& file) {
    file.set(kQkv + ".comfy_quant", dtype, {static_cast<std::int64_t>(tag.size())}, tag);
  });
}

std::function<std::string()> added(const std::string& key, DType dtype,
                                   const std::vector<std::int64_t>& shape) {
  return reshaped(kBF16, key, dtype, shape);
}

// An int8 file whose out_proj is W4A4: the other layers are too narrow for it.
std::function<std::string()> w4a4(float scale) {
  return model(kInt8Tensorwise, [=](ModelFile& file) {
    file.set(kOut + ".weight", DType::kI8, {32, 64}, "");
    file.set_floats(kOut + ".weight_scale", {1}, {scale});
    file.set_text(kOut + ".comfy_quant", R"({"format":"convrot_w4a4","convrot_groupsize":64})");
  });
}

constexpr Status kBad = Status::kBadFile, kNo = Status::kUnsupported;

std::vector<Broken> container() {
  return {
      {"shorter than the length field", kBad, {"header", "7 bytes"}, raw("1234567")},
      {"header longer than the file",
       kBad,
       {"header", "truncated"},
       raw(std::string("\x40\0\0\0\0\0\0\0{}", 10))},
      {"header longer than any",
       kBad,
       {"header", "over the limit"},
       raw("\xff\xff\xff\xff\xff\xff\xff\x7f{}")},
      {"header that is no JSON", kBad, {"header", "JSON"}, header("{\"a\":")},
      {"header that is no UTF-8", kBad, {"header", "UTF-8"}, header("{\"\xff\":1}")},
      {"header that is no object", kBad, {"header", "does not start with '{'"}, header("[]")},
      {"key given twice",
       kBad,
       {"a", "twice"},
       header(
           R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})")},
      {"unknown dtype",
       kBad,
       {"a", "unknown dtype"},
       header(R"({"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}})")},
      {"negative shape",
       kBad,
       {"a", "negative"},
       header(R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})")},
      {"shape that is no integer",
       kBad,
       {"a", "not an integer"},
       header(R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})")},
      {"product of a shape that overflows",
       kBad,
       {"a", "overflows"},
       header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})")},
      {"offsets backwards",
       kBad,
       {"a", "backwards"},
       header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})")},
      {"size that is not the shape's",
       kBad,
       {"a", "need 3 bytes", "span 4"},
       header(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}})")},
      {"hole", kBad, {"a", "hole"}, header(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})")},
      {"overlap",
       kBad,
       {"b", "overlaps"},
       header(
           R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})")},
      {"end beyond the file",
       kBad,
       {"a", "truncated", "1 bytes are missing"},
       header(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})")},
      {"65 bytes after the last tensor",
       kBad,
       {"data", "65 bytes follow"},
       [] { return whole(ModelFile()) + "\nL2P_bypass_" + std::string(53, 'x'); }},
      {"Git LFS pointer",
       kBad,
       {"file", "git lfs pull"},
       raw("version https://git-lfs.github.com/spec/v1\n")},
      {"GGUF", kBad, {"file", "GGUF", "take the safetensors file"}, raw("GGUF\x03\0\0\0 and more")},
      {"cut short",
       kBad,
       {"final_layer.audio_out.bias", "truncated"},
       [] {
         const std::string bytes = whole(ModelFile());
         return bytes.substr(0, bytes.size() - 1);
       }},
  };
}

std::vector<Broken> tags() {
  return {
      {"tag that is not U8", kBad, {kQkv + ".comfy_quant", "must be U8"}, tagged("{}", DType::kI8)},
      {"tag that is no JSON", kBad, {kQkv + ".comfy_quant", "not valid JSON"}, tagged("int8")},
      {"tag that is no UTF-8",
       kBad,
       {kQkv + ".comfy_quant", "not valid JSON"},
       tagged("{\"format\":\"\xff\"}")},
      {"tag that is no object", kBad, {kQkv + ".comfy_quant", "expected a JSON object"}, tagged("[1]")},
      {"tag without format", kBad, {kQkv + ".comfy_quant", "no `format`"}, tagged("{\"convrot\":true}")},
      {"unknown format", kBad, {kQkv, "unknown weight format \"int3\""}, tagged(R"({"format":"int3"})")},
      {"AWQ", kNo, {kQkv, "cannot run weight format \"awq_w4a16\""}, tagged(R"({"format":"awq_w4a16"})")},
      {"metadata tags that contradict a tag",
       kBad,
       {"_quantization_metadata", "contradicts"},
       model(kInt8Tensorwise,
             [](ModelFile& file) {
               file.metadata["_quantization_metadata"] =
                   fmt::format(R"({{"layers":{{"{}":{{"format":"nvfp4"}}}}}})", kQkv);
             })},
      {"tag of a layer that is not there",
       kBad,
       {"blocks.1.attn.extra.weight", "missing"},
       model(kBF16,
             [](ModelFile& file) {
               file.set_text("blocks.1.attn.extra.comfy_quant", R"({"format":"int8_tensorwise"})");
             })},
      {"I8 weight without tag",
       kBad,
       {kQkv + ".weight", "I8 weight without the tag"},
       without(kInt8Tensorwise, kQkv + ".comfy_quant")},
      {"fp8 weight without tag",
       kNo,
       {kQkv + ".weight", "fp8 weight without a tag"},
       added(kQkv + ".weight", DType::kF8E4M3, {384, 32})},
      {"scale without tag",
       kBad,
       {kQkv + ".weight_scale", "no .comfy_quant tag"},
       added(kQkv + ".weight_scale", DType::kF32, {384, 1})},
      {"SVDQuant",
       kNo,
       {kQkv + ".qweight", "SVDQuant"},
       model(kBF16,
             [](ModelFile& file) {
               file.erase(kQkv + ".weight");
               file.set(kQkv + ".qweight", DType::kI8, {384, 16}, "");
               file.set(kQkv + ".smooth_factor", DType::kBF16, {32}, "");
             })},
      {"rotation group that is no power of 4",
       kBad,
       {kQkv + ".weight", "power of 4"},
       tagged(R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":8})")},
      {"columns that the rotation group does not divide",
       kBad,
       {kQkv + ".weight", "256 does not divide"},
       tagged(R"({"format":"int8_tensorwise","convrot":true})")},
  };
}

std::vector<Broken> scales() {
  const std::string scale = kOut + ".weight_scale";
  return {
      {"int8 without scale", kBad, {scale, "missing"}, without(kInt8Tensorwise, scale)},
      {"int8 scales neither 1 nor N",
       kBad,
       {scale, "expected 1 or 32 values"},
       floats(kInt8Tensorwise, scale, {31, 1}, 0.5f)},
      {"int8 scale of zero", kBad, {scale, "scale 0 is 0"}, floats(kInt8Tensorwise, scale, {32, 1}, 0)},
      {"int8 scale below zero", kBad, {scale, "scale 0 is -1"}, floats(kInt8Tensorwise, scale, {32, 1}, -1)},
      {"int8 scale that is NaN",
       kBad,
       {scale, "scale 0 is nan"},
       floats(kInt8Tensorwise, scale, {32, 1}, kNan)},
      {"int8 scale without end",
       kBad,
       {scale, "scale 0 is inf"},
       floats(kInt8Tensorwise, scale, {32, 1}, kInf)},
      {"int8 scale under which weights overflow",
       kBad,
       {scale, "scale 0 is 1e+15", "at most"},
       floats(kInt8Tensorwise, scale, {}, 1e15f)},
      {"fp8 without scale", kBad, {scale, "missing"}, without(kFloat8E4M3, scale)},
      {"fp8 scale of zero", kBad, {scale, "scale 0 is 0"}, floats(kFloat8E5M2, scale, {}, 0)},
      {"fp8 with a scale a row", kBad, {scale, "expected 1"}, floats(kFloat8E4M3, scale, {32, 1}, 0.5f)},
      {"fp8 input scale that is NaN",
       kBad,
       {kOut + ".input_scale", "scale 0 is nan"},
       floats(kFloat8E4M3, kOut + ".input_scale", {}, kNan)},
      {"mxfp8 without scale", kBad, {scale, "missing"}, without(kMxfp8, scale)},
      {"mxfp8 scale that is NaN", kBad, {scale, "scale 7 is nan"}, byte(kMxfp8, scale, 7, '\xFF')},
      {"mxfp8 scale under which weights overflow",
       kBad,
       {scale, "scale 7 is 5.6", "at most"},
       byte(kMxfp8, scale, 7, '\xB0')},
      {"mxfp8 scales not swizzled",
       kBad,
       {scale, "shape must be [128,4]"},
       reshaped(kMxfp8, scale, DType::kF8E8M0, {32, 4})},
      {"nvfp4 without block scales", kBad, {scale, "missing"}, without(kNvfp4, scale)},
      {"nvfp4 without the tensor's scale", kBad, {scale + "_2", "missing"}, without(kNvfp4, scale + "_2")},
      {"nvfp4 tensor scale of zero",
       kBad,
       {scale + "_2", "scale 0 is 0"},
       floats(kNvfp4, scale + "_2", {}, 0)},
      {"nvfp4 block scale that is NaN", kBad, {scale, "scale 5 is nan"}, byte(kNvfp4, scale, 5, '\x7F')},
      {"nvfp4 block scale below zero", kBad, {scale, "scale 5 is -1"}, byte(kNvfp4, scale, 5, '\xB8')},
      {"nvfp4 input scale without end",
       kBad,
       {kOut + ".input_scale", "scale 0 is inf"},
       floats(kNvfp4, kOut + ".input_scale", {}, kInf)},
      {"nvfp4 block scales not swizzled",
       kBad,
       {scale, "shape must be [128,8]"},
       reshaped(kNvfp4, scale, DType::kF8E4M3, {32, 8})},
      {"nvfp4 input factors of another width",
       kBad,
       {kOut + ".pre_quant_scale", "shape must be [128]"},
       reshaped(kNvfp4, kOut + ".pre_quant_scale", DType::kBF16, {64})},
      {"W4A4 scale of zero", kBad, {scale, "scale 0 is 0"}, w4a4(0)},
      {"W4A4 scale that is NaN", kBad, {scale, "scale 0 is nan"}, w4a4(kNan)},
      {"W4A8 without group scales",
       kBad,
       {kOut + ".weight_s_rel", "missing"},
       without(kAsymW4A8, kOut + ".weight_s_rel")},
      {"W4A8 without row scales",
       kBad,
       {kOut + ".weight_s_channel", "missing"},
       without(kAsymW4A8, kOut + ".weight_s_channel")},
      {"W4A8 group scale that is NaN",
       kBad,
       {kOut + ".weight_s_rel", "scale 3 is"},
       byte(kAsymW4A8, kOut + ".weight_s_rel", 3, '\x7F')},
      {"W4A8 group scale below zero",
       kBad,
       {kOut + ".weight_s_rel", "scale 3 is -1"},
       byte(kAsymW4A8, kOut + ".weight_s_rel", 3, '\xB8')},
      {"W4A8 group scale in float32 below zero",
       kBad,
       {kOut + ".weight_s_rel", "scale 0 is -1", "at least 0"},
       floats(kAsymW4A8, kOut + ".weight_s_rel", {32, 8}, -1)},
      {"W4A8 row scale of zero",
       kBad,
       {kOut + ".weight_s_channel", "scale 0 is 0"},
       floats(kAsymW4A8, kOut + ".weight_s_channel", {32}, 0)},
      {"W4A8 level that is no number",
       kBad,
       {kOut + ".weight_codebook", "value 0 is inf"},
       floats(kAsymW4A8, kOut + ".weight_codebook", {16}, kInf)},
      {"packed weight of the wrong width",
       kBad,
       {kOut + ".weight", "shape must be [32,64], got [32,128]"},
       reshaped(kAsymW4A8, kOut + ".weight", DType::kI8, {32, 128})},
      {"nvfp4 weight of the wrong width",
       kBad,
       {kOut + ".weight", "shape must be [32,64], got [32,32]"},
       reshaped(kNvfp4, kOut + ".weight", DType::kU8, {32, 32})},
  };
}

// A value in the middle of a tensor of numbers.
std::function<std::string()> spoilt(WeightFormat format, const std::string& key, float value,
                                    Form form = Form::kCurve) {
  return [=] {
    ModelFile file(form, format);
    const io::TensorDecl decl = file.decl(key);
    std::string bytes = file.bytes(key);
    const std::size_t size = dtype_size(decl.dtype), at = bytes.size() / size / 2 * size;
    const std::uint16_t narrow = decl.dtype == DType::kF16 ? to_f16(value).bits : to_bf16(value).bits;
    std::memcpy(bytes.data() + at, size == 4 ? static_cast<const void*>(&value) : &narrow, size);
    file.set(key, decl.dtype, decl.shape, bytes);
    return whole(file);
  };
}

// What a quantiser of activations would make finite numbers of.
std::vector<Broken> values() {
  const std::string adaln = "blocks.1.adaln_proj.linear";
  return {
      {"norm",
       kBad,
       {"blocks.2.norm1.weight", "value 16 is nan"},
       spoilt(kInt8Tensorwise, "blocks.2.norm1.weight", kNan)},
      {"head norm",
       kBad,
       {"blocks.0.attn.q_norm.weight", "value 64 is inf"},
       spoilt(kAsymW4A8, "blocks.0.attn.q_norm.weight", kInf)},
      {"norm of the refiner",
       kBad,
       {"token_refiner.blocks.0.norm2.weight", "is nan"},
       spoilt(kFloat8E4M3, "token_refiner.blocks.0.norm2.weight", kNan)},
      {"last norm",
       kBad,
       {"final_layer.norm.weight", "is -inf"},
       spoilt(kNvfp4, "final_layer.norm.weight", -kInf)},
      {"modulation", kBad, {adaln + ".weight", "is nan"}, spoilt(kAsymW4A8, adaln + ".weight", kNan)},
      {"bias of a modulation", kBad, {adaln + ".bias", "is nan"}, spoilt(kMxfp8, adaln + ".bias", kNan)},
      {"bias of an island",
       kBad,
       {"video_patch_proj.bias", "is nan"},
       spoilt(kInt8Tensorwise, "video_patch_proj.bias", kNan)},
      {"output head",
       kBad,
       {"final_layer.audio_out.weight", "is inf"},
       spoilt(kFloat8E5M2, "final_layer.audio_out.weight", kInf)},
      {"text projection",
       kBad,
       {"condition_proj.weight", "is nan"},
       spoilt(kNvfp4, "condition_proj.weight", kNan)},
      {"time embedder",
       kBad,
       {"time_embedder.proj_in.weight", "is nan"},
       spoilt(kInt8Tensorwise, "time_embedder.proj_in.weight", kNan, Form::kFull)},
      {"table of the curve",
       kBad,
       {"adaln_t_table", "value 20 is inf"},
       spoilt(kInt8Tensorwise, "adaln_t_table", kInf)},
      {"rope", kBad, {"rope.inv_freq", "value 8 is nan"}, spoilt(kInt8Tensorwise, "rope.inv_freq", kNan)},
      {"plain weight of a block", kBad, {kQkv + ".weight", "is nan"}, spoilt(kBF16, kQkv + ".weight", kNan)},
      {"factors of an input",
       kBad,
       {kOut + ".pre_quant_scale", "value 0 is nan"},
       floats(kNvfp4, kOut + ".pre_quant_scale", {128}, kNan)},
  };
}

std::vector<Broken> network() {
  return {
      {"missing key", kBad, {"blocks.2.norm1.weight", "missing"}, without(kBF16, "blocks.2.norm1.weight")},
      {"gap in the blocks",
       kBad,
       {"blocks.1", "gap"},
       model(kBF16,
             [](ModelFile& file) {
               for (const std::string& key : file.keys())
                 if (key.starts_with("blocks.1.")) file.erase(key);
             })},
      {"weight of the wrong shape",
       kBad,
       {kQkv + ".weight", "shape must be [384,32]"},
       added(kQkv + ".weight", DType::kBF16, {384, 31})},
      {"weight of the wrong dtype",
       kBad,
       {kQkv + ".weight", "dtype must be", "I32"},
       added(kQkv + ".weight", DType::kI32, {384, 32})},
      {"table that holds no number",
       kBad,
       {"adaln_t_table", "value 0 is nan"},
       floats(kBF16, "adaln_t_table", {5, 8}, kNan)},
      {"Diffusers names",
       kBad,
       {"video_patch_proj.weight", "Diffusers"},
       model(kBF16,
             [](ModelFile& file) {
               file.erase("video_patch_proj.weight");
               file.set("transformer_blocks.0.attn.to_q.weight", DType::kBF16, {1}, "");
             })},
      {"LoRA",
       kBad,
       {"video_patch_proj.weight", "LoRA"},
       model(kBF16,
             [](ModelFile& file) {
               file.erase("video_patch_proj.weight");
               file.set("diffusion_model.blocks.0.attn.qkv_proj.lora_A.weight", DType::kBF16, {1}, "");
             })},
      {"config that contradicts the tensors",
       kBad,
       {"__metadata__.config", "num_layers is 7"},
       model(kBF16,
             [](ModelFile& file) { file.metadata["config"] = R"({"transformer":{"num_layers":7}})"; })},
      {"two networks",
       kBad,
       {"video_patch_proj.weight", "two prefixes"},
       model(kBF16,
             [](ModelFile& file) {
               file.set("diffusion_model.video_patch_proj.weight", DType::kBF16, {1}, "");
               file.set("diffusion_model.audio_patch_proj.weight", DType::kBF16, {1}, "");
             })},
  };
}

void expect_all_refused(const std::vector<Broken>& files) {
  const TempDir directory;
  const std::string path = directory.file("model.safetensors");
  for (const Broken& broken : files) {
    SCOPED_TRACE(broken.what);
    write_file(path, broken.bytes());
    expect_refused([&] { Checkpoint::open(path); }, broken.status, path, broken.pieces);
    const Report report = describe(path, {});  // inspect says the same
    ASSERT_TRUE(report.refusal);
    for (const std::string& piece : broken.pieces)
      EXPECT_NE(report.refusal->find(piece), std::string::npos) << *report.refusal;
  }
}

TEST(BrokenFiles, Containers) {
  expect_all_refused(container());
}
TEST(BrokenFiles, Tags) {
  expect_all_refused(tags());
}
TEST(BrokenFiles, Scales) {
  expect_all_refused(scales());
}
TEST(BrokenFiles, Values) {
  expect_all_refused(values());
}
TEST(BrokenFiles, Networks) {
  expect_all_refused(network());
}

std::size_t warnings_of_zeros(const std::string& path) {
  std::size_t count = 0;
  for (const Finding& finding : quick_warnings(Checkpoint::open(path)))
    count += finding.text.find("end in a page of zeros") != std::string::npos;
  return count;
}

// Nothing structural is wrong with these, so they are warned of.
TEST(BrokenFiles, ZeroFilledTails) {
  const TempDir directory;
  const std::string path = directory.file("model.safetensors");
  for (const WeightFormat format : {kBF16, kInt8Tensorwise, kNvfp4, kMxfp8}) {
    ModelFile file(Form::kCurve, format);
    file.write(path);
    EXPECT_EQ(warnings_of_zeros(path), 0u) << weight_format_name(format);
    file.set("vae.tail", DType::kI8, {100000}, std::string(90000, 'x'));
    file.write(path);
    EXPECT_EQ(warnings_of_zeros(path), 1u) << weight_format_name(format);
  }
}

// Rows that a format pads with are no damage: 15 of out_proj here, 30 kB.
TEST(BrokenFiles, PaddingIsNoTail) {
  const TempDir directory;
  const std::string path = directory.file("model.safetensors");
  spec::ModelSpec spec = small_spec(Form::kCurve);
  spec.hidden = 33;
  spec.heads = 32;
  write_synthetic_checkpoint(path, {.spec = spec, .format = kNvfp4, .seed = 1}, nullptr);
  EXPECT_EQ(Checkpoint::open(path).linear(kOut).weight->shape, (std::vector<std::int64_t>{48, 2048}));
  EXPECT_EQ(warnings_of_zeros(path), 0u);
}

}  // namespace
}  // namespace h3s::checkpoint
