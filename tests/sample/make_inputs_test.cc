// Files that tools/make_inputs.py writes are what the reader takes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "inputs_file.h"
#include "sample/inputs.h"

namespace h3s::sample {
namespace {

namespace fs = std::filesystem;

class MakeInputs : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("h3s_make_inputs_test.{}", ::getpid());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  static int python(const std::string& arguments) {
    return std::system(fmt::format("{} {} 2>/dev/null", H3S_PYTHON, arguments).c_str());
  }
  static int tool(const std::string& arguments) {
    return python(fmt::format("{} {}", H3S_MAKE_INPUTS, arguments));
  }
  std::string file(const char* name) const { return (directory_ / name).string(); }

  fs::path directory_;
};

TEST_F(MakeInputs, SyntheticFilesAreAcceptedAndRepeatThemselves) {
  const auto make = [&](const char* name, int seed) {
    return tool(fmt::format("--synthetic 7,2,4,5,6 --text-dim 12 --seed {} -o {}", seed, file(name)));
  };
  if (make("a", 1) != 0) GTEST_SKIP() << "no Python at " << H3S_PYTHON;
  ASSERT_EQ(make("b", 1), 0);
  const Inputs inputs = Inputs::open(file("a"), test::small_model());
  EXPECT_EQ(inputs.job().text_len, 7);
  EXPECT_EQ(inputs.job().latent_w, 5);
  EXPECT_EQ(inputs.job().audio_t, 6);
  std::ifstream a(file("a")), b(file("b"));
  EXPECT_TRUE(std::equal(std::istreambuf_iterator<char>(a), {}, std::istreambuf_iterator<char>(b)));
}

TEST_F(MakeInputs, NumpyArraysAreAccepted) {
  if (python("-c 'import numpy'") != 0) GTEST_SKIP() << "no numpy for " << H3S_PYTHON;
  {
    std::ofstream(file("make.py")) << R"(
import numpy as np, sys
d = sys.argv[1] + "/"
f = lambda *shape: np.full(shape, 0.25)
np.save(d + "text.npy", f(7, 12))
np.save(d + "tags.npy", np.array([1, 0, 0, 1, 1, 1, 1]))
np.save(d + "frame.npy", f(1, 3, 1, 4, 5).astype(np.float16))
np.savez(d + "clip.npz", latent=f(1, 3, 2, 2, 4), audio=f(1, 5, 2, 3))
np.save(d + "voice.npy", f(1, 5, 2, 9).astype(np.float32))
np.savez(d + "start.npz", video=f(1, 3, 2, 4, 5), audio=f(1, 5, 2, 6))
)";
  }
  ASSERT_EQ(python(file("make.py") + " " + directory_.string()), 0);
  const std::string d = directory_.string();
  ASSERT_EQ(tool(fmt::format("--text {0}/text.npy --tags {0}/tags.npy --latent-size 2,4,5 --audio-steps 6 "
                             "--keyframe 0={0}/frame.npy --keyframe 3=,{0}/voice.npy "
                             "--reference video={0}/clip.npz,{0}/clip.npz --reference audio={0}/voice.npy "
                             "--initial {0}/start.npz {0}/start.npz -o {0}/out",
                             d)),
            0);
  const Inputs inputs = Inputs::open(file("out"), test::small_model());
  EXPECT_EQ(inputs.job().text_tags[1], 0);
  EXPECT_EQ(inputs.job().keyframes[1].frame_idx, 3);
  EXPECT_EQ(inputs.job().keyframes[1].audio_t, 9);
  EXPECT_EQ(inputs.job().references[0].audio_t, 3);
  EXPECT_NE(inputs.initial_video(), nullptr);
  EXPECT_EQ(inputs.file().at("keyframe.0.latent").dtype, DType::kF16);
}

TEST_F(MakeInputs, BadArgumentsAreRefused) {
  if (python("-c pass") != 0) GTEST_SKIP() << "no Python at " << H3S_PYTHON;
  EXPECT_NE(tool("--synthetic 7,2,4,5 -o " + file("a")), 0);
  EXPECT_NE(tool("--synthetic 7,2,4,5,x -o " + file("a")), 0);
  EXPECT_FALSE(fs::exists(file("a")));
}

TEST_F(MakeInputs, EveryRefusalIsOneLine) {
  if (python("-c pass") != 0) GTEST_SKIP() << "no Python at " << H3S_PYTHON;
  const std::string out = " -o " + file("a"), good = "--synthetic 7,2,4,5,6 --text-dim 12";
  for (const std::string& arguments :
       {"--synthetic 7,2,4,5,0" + out, "--synthetic ''" + out, "--synthetic 7,2,-4,5,6" + out,
        "--synthetic 7,2,4,5,²" + out, "--synthetic 7,2,4,5,99999999999999999999" + out,
        "--synthetic 7,2,4,5,6 --text-dim -12" + out, "--synthetic 2000000000,2,4,5,6" + out,
        good + " --keyframe 0=" + file("x.npy") + out, good + " --audio-steps 5" + out,
        good + " -o " + directory_.string(), good + " -o " + file("no/such/folder"),
        "--text " + file("no.npy") + " --latent-size 2,4,5 --audio-steps 6" + out,
        "--text " + file("no.npy") + " --latent-size 2,4,5 --audio-steps -6" + out}) {
    EXPECT_NE(std::system(
                  fmt::format("{} {} {} 2>{}", H3S_PYTHON, H3S_MAKE_INPUTS, arguments, file("err")).c_str()),
              0)
        << arguments;
    std::ifstream err(file("err"));
    const std::string text{std::istreambuf_iterator<char>(err), {}};
    EXPECT_EQ(text.find("make_inputs: "), 0u) << arguments << '\n' << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << arguments << '\n' << text;
  }
  for (const auto& entry : fs::directory_iterator(directory_)) EXPECT_EQ(entry.path().filename(), "err");
}

}  // namespace
}  // namespace h3s::sample
