#include "sample/state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "fake_network.h"
#include "sample/schedules.h"

namespace h3s::sample {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVideo = 301, kAudio = 44, kSteps = 6;

SamplerOptions sampler_options() {
  SamplerOptions options;
  options.video_elements = kVideo;
  options.audio_elements = kAudio;
  options.sigmas = make_schedule({.steps = kSteps});
  return options;
}

Settings settings() {
  return {{"seed", "3"}, {"steps", "6"}, {"model", "0123456789abcdef"}};
}

class State : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("h3s_state_test.{}", ::getpid());
    fs::create_directories(directory_);
    path_ = (directory_ / "out.state.safetensors").string();
  }
  void TearDown() override { fs::remove_all(directory_); }

  // Runs to the end, saving after every step; dies by SIGKILL after `kill_after` steps.
  std::vector<float> run(EulerSampler& sampler, std::int64_t kill_after = -1) {
    while (!sampler.done()) {
      if (sampler.steps_done() == kill_after) ::raise(SIGKILL);
      sampler.step(test::fake_network(kVideo, kAudio));
      save_state(path_, sampler, settings());
    }
    return {sampler.state(), sampler.state() + sampler.elements()};
  }

  EulerSampler fresh() {
    EulerSampler sampler(accountant_, sampler_options());
    sampler.start(3, nullptr, nullptr);
    return sampler;
  }

  void save_one_step() {
    EulerSampler sampler = fresh();
    sampler.step(test::fake_network(kVideo, kAudio));
    save_state(path_, sampler, settings());
  }

  std::string refusal(const Settings& other) {
    EulerSampler sampler(accountant_, sampler_options());
    try {
      load_state(path_, sampler, other);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  fs::path directory_;
  std::string path_;
  mem::Accountant accountant_{mem::make_heap_allocator(true)};
};

TEST_F(State, KilledBetweenAnyTwoStepsARunResumesToTheSameBits) {
  EulerSampler uninterrupted = fresh();
  const std::vector<float> expected = run(uninterrupted);
  for (std::int64_t kill_after = 1; kill_after < kSteps; ++kill_after) {
    fs::remove(path_);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      EulerSampler sampler = fresh();
      run(sampler, kill_after);
      ::_exit(1);  // not reached
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EulerSampler resumed(accountant_, sampler_options());
    load_state(path_, resumed, settings());
    EXPECT_EQ(resumed.steps_done(), kill_after);
    EXPECT_EQ(run(resumed), expected) << "killed after step " << kill_after;
  }
}

TEST_F(State, DifferentSettingsAreNamed) {
  save_one_step();
  Settings other = settings();
  other["seed"] = "4";
  other["model"] = "fedcba9876543210";
  const std::string text = refusal(other);
  EXPECT_NE(text.find("seed was 3, is 4"), std::string::npos) << text;
  EXPECT_NE(text.find("model was 0123456789abcdef, is fedcba9876543210"), std::string::npos) << text;
  EXPECT_EQ(text.find("steps was"), std::string::npos) << text;
  EXPECT_EQ(refusal(settings()), "accepted");
  other = settings();
  other.erase("seed");  // as a LoRA that is left out
  EXPECT_NE(refusal(other).find("seed was 3, is nothing"), std::string::npos) << refusal(other);
}

TEST_F(State, AMissingFileIsAnInputOutputError) {
  EulerSampler sampler(accountant_, sampler_options());
  try {
    load_state(path_, sampler, settings());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kIo);
  }
}

TEST_F(State, OtherFilesAreRefused) {
  { std::ofstream(path_) << "not a state"; }
  EXPECT_NE(refusal(settings()), "accepted");
  io::SafetensorsWriter writer(path_, {}, {});
  writer.finish();
  EXPECT_NE(refusal(settings()).find("h3s_state"), std::string::npos);
}

TEST_F(State, AnotherSizeIsRefused) {
  save_one_step();
  SamplerOptions larger = sampler_options();
  ++larger.video_elements;
  EulerSampler sampler(accountant_, larger);
  EXPECT_THROW(load_state(path_, sampler, settings()), Error);
}

TEST_F(State, AValueThatIsNotFiniteIsRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EulerSampler sampler = fresh();
    std::vector<float> values(sampler.state(), sampler.state() + sampler.elements());
    values[7] = bad;
    sampler.restore(1, values.data());
    save_state(path_, sampler, settings());
    EXPECT_NE(refusal(settings()).find("state: element 7"), std::string::npos) << refusal(settings());
  }
}

TEST_F(State, CanBeCheckedWithoutASampler) {
  save_one_step();
  EXPECT_NO_THROW(check_state(path_, sampler_options(), settings()));
  EXPECT_THROW(check_state(path_, sampler_options(), {{"seed", "4"}}), Error);
}

TEST_F(State, FingerprintsTellFilesApart) {
  const auto fingerprints = [&](float value, const char* key) {
    io::SafetensorsWriter writer(path_, {{key, DType::kF32, {1}}});
    writer.write(&value, sizeof value);
    writer.finish();
    const auto file = io::SafetensorsReader::open(path_);
    return std::pair{header_fingerprint(file), content_fingerprint(file)};
  };
  const auto [header, content] = fingerprints(1.0f, "x");
  EXPECT_EQ(fingerprints(1.0f, "x"), std::pair(header, content));
  EXPECT_EQ(fingerprints(2.0f, "x").first, header);
  EXPECT_NE(fingerprints(2.0f, "x").second, content);
  EXPECT_NE(fingerprints(1.0f, "y").first, header);
}

TEST(StatePath, StandsBesideTheOutput) {
  EXPECT_EQ(state_path("a/out.safetensors"), "a/out.state.safetensors");
  EXPECT_EQ(state_path("a/out"), "a/out.state.safetensors");
}

}  // namespace
}  // namespace h3s::sample
