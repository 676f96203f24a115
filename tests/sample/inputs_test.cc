#include "sample/inputs.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/error.h"
#include "base/float16.h"
#include "inputs_file.h"

namespace h3s::sample {
namespace {

using test::floats;
using test::InputsFile;
using test::integers;
using test::TestTensor;

Inputs open(const InputsFile& file) {
  return Inputs::open(file.write(), test::small_model());
}

// A file with every kind of condition.
void add_conditions(InputsFile& file) {
  file.about["keyframes"] = {{{"frame", 0}}, {{"frame", 4}}};
  file.about["references"] = {{{"kind", "image"}}, {{"kind", "audio"}}, {{"kind", "video"}}};
  file.tensors["keyframe.0.latent"] = floats({1, 3, 1, 4, 5});
  file.tensors["keyframe.0.audio"] = floats({1, 5, 2, 2});
  file.tensors["keyframe.1.audio"] = floats({1, 5, 2, 1});
  file.tensors["reference.0.latent"] = floats({1, 3, 1, 2, 4});
  file.tensors["reference.1.audio"] = floats({1, 5, 2, 3});
  file.tensors["reference.2.latent"] = floats({1, 3, 2, 2, 2});
  file.tensors["reference.2.audio"] = floats({1, 5, 2, 4});
}

TEST(Inputs, ReadTextToVideo) {
  InputsFile file;
  const Inputs inputs = open(file);
  EXPECT_EQ(inputs.job().text_len, 7);
  EXPECT_EQ(inputs.video_shape().elements(), 3 * 2 * 4 * 5);
  EXPECT_EQ(inputs.audio_shape().elements(), 5 * 2 * 6);
  EXPECT_EQ(inputs.initial_video(), nullptr);
  mem::Accountant accountant(mem::make_heap_allocator(true));
  const mem::Buffer text = inputs.text(accountant);
  EXPECT_EQ(std::memcmp(text.data(), file.tensors["text"].data.data(), 7 * 12 * 4), 0);
  EXPECT_EQ(accountant.current_bytes(mem::Space::kHost), 512);  // 336 B in granules of 256
}

TEST(Inputs, ReadConditionsInSegmentOrder) {
  InputsFile file;
  add_conditions(file);
  const Inputs inputs = open(file);
  const auto names = [](const std::vector<const io::TensorInfo*>& list) {
    std::vector<std::string> out;
    for (const io::TensorInfo* info : list) out.push_back(info->name);
    return out;
  };
  EXPECT_EQ(names(inputs.visual_latents()),
            (std::vector<std::string>{"keyframe.0.latent", "reference.0.latent", "reference.2.latent"}));
  EXPECT_EQ(names(inputs.audio_latents()),
            (std::vector<std::string>{"keyframe.0.audio", "keyframe.1.audio", "reference.1.audio",
                                      "reference.2.audio"}));
  std::vector<std::string> kinds;
  const spec::Layout layout(inputs.job());
  for (const spec::Segment& s : layout.segments()) kinds.push_back(segment_kind_name(s.kind));
  EXPECT_EQ(kinds, (std::vector<std::string>{"text", "cond", "cond_audio", "cond_audio", "ref_img",
                                             "ref_audio", "ref_audio", "ref_img", "audio", "video"}));
  EXPECT_EQ(inputs.job().keyframes[1].frame_idx, 4);
}

TEST(Inputs, AcceptABatchOfOneAndHalfPrecision) {
  InputsFile file;
  file.tensors["text"] = {DType::kBF16, {1, 2, 12}, std::vector<std::byte>(2 * 12 * 2)};
  const std::uint16_t bits = to_bf16(-3.25f).bits;
  std::memcpy(file.tensors["text"].data.data() + 6, &bits, 2);
  const Inputs inputs = open(file);
  EXPECT_EQ(inputs.job().text_len, 2);
  mem::Accountant accountant(mem::make_heap_allocator());
  EXPECT_EQ(inputs.text(accountant).as<float>()[3], -3.25f);
}

TEST(Inputs, ReadTagsAndInitialLatents) {
  InputsFile file;
  file.tensors["text_token_tags"] = integers({1, 1, 0, 0, 2, 1, 1});
  file.tensors["initial.video"] = floats({1, 3, 2, 4, 5});
  file.tensors["initial.audio"] = floats({1, 5, 2, 6});
  const Inputs inputs = open(file);
  EXPECT_EQ(inputs.job().text_tags[4], 2);
  EXPECT_NE(inputs.initial_audio(), nullptr);
}

TEST(Inputs, ABudgetTooSmallForTheTextSaysSo) {
  InputsFile file;
  const Inputs inputs = open(file);
  mem::Accountant accountant(mem::make_heap_allocator());
  accountant.set_budget(mem::Space::kHost, 100);
  EXPECT_THROW(inputs.text(accountant), Error);
}

// Each bad file: what is changed, and what the message must name.
struct BadFile {
  const char* name;
  std::function<void(InputsFile&)> change;
  std::vector<std::string> mentions;
};

TestTensor with_value(TestTensor tensor, std::size_t idx, float value) {
  std::memcpy(tensor.data.data() + idx * sizeof value, &value, sizeof value);
  return tensor;
}

TestTensor of_dtype(TestTensor tensor, DType dtype) {
  tensor.dtype = dtype;
  return tensor;
}

const BadFile kBadFiles[] = {
    {"not_json", [](InputsFile& f) { f.about_text = "none"; }, {"h3s_inputs"}},
    {"broken_json", [](InputsFile& f) { f.about_text = "{\"version\": 1"; }, {"h3s_inputs"}},
    {"other_version",
     [](InputsFile& f) { f.about["version"] = 2; },
     {"h3s_inputs", "version must be 1, got 2"}},
    {"unknown_field", [](InputsFile& f) { f.about["fps"] = 24; }, {"h3s_inputs", "unknown field \"fps\""}},
    {"missing_size", [](InputsFile& f) { f.about.erase("audio_t"); }, {"h3s_inputs", "audio_t is missing"}},
    {"zero_latent_t", [](InputsFile& f) { f.about["latent_t"] = 0; }, {"h3s_inputs", "latent_t", "got 0"}},
    {"zero_latent_h", [](InputsFile& f) { f.about["latent_h"] = 0; }, {"h3s_inputs", "latent_h", "got 0"}},
    {"zero_audio", [](InputsFile& f) { f.about["audio_t"] = 0; }, {"h3s_inputs", "audio_t", "got 0"}},
    {"fractional_size", [](InputsFile& f) { f.about["latent_w"] = 4.5; }, {"latent_w", "4.5"}},
    {"huge_size", [](InputsFile& f) { f.about["latent_w"] = std::uint64_t{1} << 63; }, {"latent_w"}},
    {"size_past_the_layout",
     [](InputsFile& f) { f.about["latent_w"] = 1 << 20; },
     {"h3s_inputs", "latent width"}},
    {"no_text", [](InputsFile& f) { f.tensors.erase("text"); }, {"text", "no such tensor"}},
    {"text_batch_2",
     [](InputsFile& f) {
       f.tensors["text"] = floats({2, 7, 12});
     },
     {"text", "batch must be 1, got 2"}},
    {"text_width",
     [](InputsFile& f) {
       f.tensors["text"] = floats({7, 13});
     },
     {"text", "[tokens, 12]", "[7, 13]"}},
    {"text_rank", [](InputsFile& f) { f.tensors["text"] = floats({84}); }, {"text", "[84]"}},
    {"text_empty",
     [](InputsFile& f) {
       f.tensors["text"] = floats({0, 12});
     },
     {"text", "at least one token"}},
    {"text_dtype",
     [](InputsFile& f) {
       f.tensors["text"] = of_dtype(floats({7, 12}), DType::kI32);
     },
     {"text", "expected F32, F16 or BF16, got I32"}},
    {"text_nan",
     [](InputsFile& f) {
       f.tensors["text"] = with_value(floats({7, 12}), 40, std::nanf(""));
     },
     {"text", "NaN or infinity at element 40"}},
    {"text_infinity",
     [](InputsFile& f) {
       f.tensors["text"] = with_value(floats({7, 12}), 83, std::numeric_limits<float>::infinity());
     },
     {"text", "element 83"}},
    {"tags_count",
     [](InputsFile& f) {
       f.tensors["text_token_tags"] = integers({1, 1});
     },
     {"text_token_tags", "7 text tokens", "[2]"}},
    {"tags_range",
     [](InputsFile& f) {
       f.tensors["text_token_tags"] = integers({1, 1, 1, 3, 1, 1, 1});
     },
     {"text_token_tags", "0 to 2, got 3 at token 3"}},
    {"tags_negative",
     [](InputsFile& f) {
       f.tensors["text_token_tags"] = integers({-1, 1, 1, 1, 1, 1, 1});
     },
     {"text_token_tags", "got -1"}},
    {"tags_dtype",
     [](InputsFile& f) { f.tensors["text_token_tags"] = floats({7}); },
     {"text_token_tags", "expected I64, got F32"}},
    {"unknown_key", [](InputsFile& f) { f.tensors["txt"] = floats({1}); }, {"txt", "unknown key"}},
    {"conditions_not_listed",
     [](InputsFile& f) {
       f.tensors["keyframe.0.latent"] = floats({1, 3, 1, 4, 5});
     },
     {"keyframe.0.latent", "unknown key"}},
    {"keyframe_without_tensors",
     [](InputsFile& f) {
       f.about["keyframes"] = {{{"frame", 0}}};
     },
     {"keyframe.0", "needs a tensor"}},
    {"keyframe_grid",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["keyframe.0.latent"] = floats({1, 3, 1, 4, 6});
     },
     {"keyframe.0.latent", "4 x 5", "[1, 3, 1, 4, 6]"}},
    {"keyframe_batch",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["keyframe.0.latent"] = floats({2, 3, 1, 4, 5});
     },
     {"keyframe.0.latent", "batch must be 1, got 2"}},
    {"keyframe_channels",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["keyframe.0.latent"] = floats({1, 4, 1, 4, 5});
     },
     {"keyframe.0.latent", "expected 3 channels"}},
    {"keyframe_frame_negative",
     [](InputsFile& f) {
       add_conditions(f);
       f.about["keyframes"][1]["frame"] = -1;
     },
     {"keyframes[1]", "frame"}},
    {"keyframes_not_a_list", [](InputsFile& f) { f.about["keyframes"] = 3; }, {"keyframes must be a list"}},
    {"audio_zero_rows",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["reference.1.audio"] = floats({1, 5, 2, 0});
     },
     {"reference.1.audio", "no size may be 0"}},
    {"audio_mono",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["reference.1.audio"] = floats({1, 5, 1, 3});
     },
     {"reference.1.audio", "2 stereo channels"}},
    {"audio_missing",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors.erase("reference.1.audio");
     },
     {"reference.1.audio", "no such tensor"}},
    {"image_with_frames",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["reference.0.latent"] = floats({1, 3, 2, 2, 4});
     },
     {"reference.0.latent", "1 frame"}},
    {"reference_odd",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["reference.0.latent"] = floats({1, 3, 1, 2, 3});
     },
     {"reference.0.latent", "must be even"}},
    {"reference_rank",
     [](InputsFile& f) {
       add_conditions(f);
       f.tensors["reference.0.latent"] = floats({3, 1, 2, 4});
     },
     {"reference.0.latent", "[1, 3, frames, height, width]"}},
    {"reference_kind",
     [](InputsFile& f) {
       add_conditions(f);
       f.about["references"][0]["kind"] = "gif";
     },
     {"references[0]", "kind", "gif"}},
    {"reference_not_an_object",
     [](InputsFile& f) { f.about["references"] = {1}; },
     {"references[0]", "object"}},
    {"initial_alone",
     [](InputsFile& f) {
       f.tensors["initial.video"] = floats({1, 3, 2, 4, 5});
     },
     {"initial.audio", "pairs"}},
    {"initial_frames",
     [](InputsFile& f) {
       f.tensors["initial.video"] = floats({1, 3, 3, 4, 5});
       f.tensors["initial.audio"] = floats({1, 5, 2, 6});
     },
     {"initial.video", "2 latent frames"}},
    {"initial_audio_steps",
     [](InputsFile& f) {
       f.tensors["initial.video"] = floats({1, 3, 2, 4, 5});
       f.tensors["initial.audio"] = floats({1, 5, 2, 7});
     },
     {"initial.audio", "6 audio steps"}},
};

class BadInputs : public testing::TestWithParam<BadFile> {};

TEST_P(BadInputs, AreRefusedInOneLineNamingFileAndKey) {
  InputsFile file;
  GetParam().change(file);
  const std::string path = file.write();
  try {
    Inputs::open(path, test::small_model());
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.status(), Status::kBadFile) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_EQ(text.rfind(path, 0), 0u) << text;
    for (const std::string& part : GetParam().mentions) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

std::string bad_file_name(const testing::TestParamInfo<BadFile>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Files, BadInputs, testing::ValuesIn(kBadFiles), bad_file_name);

}  // namespace
}  // namespace h3s::sample
