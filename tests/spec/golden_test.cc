// Position ids and modulation rows of every reference file, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "golden_dir.h"
#include "io/safetensors.h"
#include "spec/layout.h"

namespace h3s::spec {
namespace {

using nlohmann::json;

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(test::golden_dir())) return files;
  for (const auto& entry : std::filesystem::directory_iterator(test::golden_dir()))
    if (entry.path().extension() == ".safetensors" && entry.path().stem() != "randn")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

template <typename T>
std::vector<T> values(const io::SafetensorsReader& file, const std::string& key) {
  const io::TensorInfo& info = file.at(key);
  std::vector<T> out(info.bytes() / sizeof(T));
  std::memcpy(out.data(), file.data(info), info.bytes());
  return out;
}

JobSpec sizes_of(const io::SafetensorsReader& file) {
  json s;
  if (const auto it = file.metadata().find("sizes"); it != file.metadata().end()) {
    s = json::parse(it->second);
  } else {
    const json named = json::parse(file.metadata().at("inputs"));
    for (const char* key : {"text_len", "latent_t", "latent_h", "latent_w", "audio_t"})
      s.push_back(named[key]);
  }
  JobSpec job;
  job.text_len = s[0];
  job.latent_t = s[1];
  job.latent_h = s[2];
  job.latent_w = s[3];
  job.audio_t = s[4];
  return job;
}

Reference reference_of(const io::SafetensorsReader& file, ReferenceKind kind, const char* latent,
                       const char* audio) {
  Reference out{.kind = kind};
  if (latent != nullptr) {
    const auto& shape = file.at(latent).shape;
    out.latent_t = shape[2];
    out.latent_h = shape[3];
    out.latent_w = shape[4];
  }
  if (audio != nullptr) out.audio_t = file.at(audio).shape[3];
  return out;
}

JobSpec job_of(const io::SafetensorsReader& file) {
  JobSpec job = sizes_of(file);
  if (file.find("cond.kf0") != nullptr)
    job.keyframes = {{.frame_idx = 0, .latent_t = 1}, {.frame_idx = 16, .latent_t = 1}};
  if (file.find("cond.img") != nullptr)
    job.references = {reference_of(file, ReferenceKind::kImage, "cond.img", nullptr),
                      reference_of(file, ReferenceKind::kVideo, "cond.vid", "cond.vaud"),
                      reference_of(file, ReferenceKind::kAudio, nullptr, "cond.aud")};
  if (file.find("cond.text_token_tags") != nullptr)
    job.text_tags = values<std::int64_t>(file, "cond.text_token_tags");
  return job;
}

// The small files come from a CPU, which divides; `real1` from a GPU. No condition noise: those rows have t
// = 1.
TimestepOptions options_of(const std::filesystem::path& path) {
  TimestepOptions options;
  options.visual_aug = 1.0;
  options.reciprocal_division = path.stem().string().starts_with("real");
  return options;
}

class Golden : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Golden, PositionsAreBitEqual) {
  const auto file = io::SafetensorsReader::open(GetParam().string());
  if (file.find("position_ids") == nullptr) GTEST_SKIP() << "the file holds no position ids";
  const auto expected = values<double>(file, "position_ids");
  const Layout layout(job_of(file));
  ASSERT_EQ(static_cast<std::size_t>(layout.tokens()) * 3, expected.size());
  std::vector<double> actual(expected.size());
  layout.positions(0, layout.tokens(), actual.data());
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(double)), 0);
}

TEST_P(Golden, ModulationRowsAreEqual) {
  const auto file = io::SafetensorsReader::open(GetParam().string());
  const Layout layout(job_of(file));
  const float sigma = std::stof(file.metadata().at("sigma"));
  std::vector<std::int64_t> actual;
  for (const kernels::ModSegment& s : make_timesteps(layout, sigma, options_of(GetParam())).segments)
    actual.insert(actual.end(), {s.start, s.stop, s.row});
  EXPECT_EQ(actual, values<std::int64_t>(file, "mod_segments"));
}

std::string file_name(const testing::TestParamInfo<std::filesystem::path>& info) {
  std::string name = info.param.stem().string();
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), file_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);

TEST(GoldenFiles, AreThere) {
  if (golden_files().empty()) GTEST_SKIP() << "no reference vectors in " << test::golden_dir();
}

}  // namespace
}  // namespace h3s::spec
