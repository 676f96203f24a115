// The program itself: whole runs of a small synthetic checkpoint, stopped, resumed and refused.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <optional>
#include <regex>
#include <sstream>
#include <thread>

#include "inputs_file.h"

namespace h3s::test {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class RunCommand : public testing::Test {
 protected:
  struct Outcome {
    int exit_code = -1;  // -1: killed by a signal
    std::string out, err;
  };

  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("h3s_run_command_test.{}", ::getpid());
    fs::create_directories(directory_);
    ASSERT_EQ(finish(start({"synth", "-o", path("model.safetensors")})).exit_code, 0);
    InputsFile inputs;
    inputs.about = {{"version", 1}, {"latent_t", 2}, {"latent_h", 5}, {"latent_w", 8}, {"audio_t", 8}};
    inputs.tensors["text"] = floats({5, 128});
    fs::copy_file(inputs.write(), path("inputs.safetensors"));
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  fs::path state() const { return path("out.state.safetensors"); }

  pid_t start(const std::vector<std::string>& arguments) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::dup2(::open(path("stdout").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    ::dup2(::open(path("stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    std::vector<char*> argv{const_cast<char*>(H3S_PROGRAM)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(H3S_PROGRAM, argv.data());
    ::_exit(127);
  }

  Outcome finish(pid_t child) const {
    int status = 0;
    ::waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(path("stdout")), contents(path("stderr"))};
  }

  std::vector<std::string> arguments(const std::string& output, std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"run", "-m",  path("model.safetensors"), "-i", path("inputs.safetensors"),
                                 "-o",  output};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome run(std::vector<std::string> more = {}, const std::string& output = "out.safetensors") {
    return finish(start(arguments(path(output), std::move(more))));
  }

  std::optional<fs::file_time_type> state_time() const {
    std::error_code error;
    const auto time = fs::last_write_time(state(), error);
    return error ? std::nullopt : std::optional(time);
  }

  static bool ended(pid_t child) {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
  }

  // Until the state on disk is a new one, or the child is done.
  void wait_for_a_step(pid_t child) const {
    const auto before = state_time();
    while (state_time() == before && !ended(child)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  fs::path directory_;
};

TEST_F(RunCommand, WritesLatentsAndTheSettingsThatMadeThem) {
  const Outcome outcome = run({"--steps", "3", "--seed", "7"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("planned"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("step 3/3"), std::string::npos) << outcome.err;
  const auto file = io::SafetensorsReader::open(path("out.safetensors"));
  EXPECT_EQ(file.at("video").shape, (std::vector<std::int64_t>{1, 24, 2, 5, 8}));
  EXPECT_EQ(file.at("audio").shape, (std::vector<std::int64_t>{1, 32, 2, 8}));
  EXPECT_EQ(file.metadata().at("seed"), "7");
  EXPECT_EQ(file.metadata().at("steps"), "3");
  EXPECT_FALSE(fs::exists(state()));
}

TEST_F(RunCommand, PlansThreadsAndBudgetsGiveEqualFiles) {
  ASSERT_EQ(run({"--steps", "2"}, "a.safetensors").exit_code, 0);
  ASSERT_EQ(run({"--steps", "2", "--schedule", "flat", "--q-chunk", "7", "--kv-chunk", "9", "--head-group",
                 "1", "--threads", "1", "--ram", "1GiB", "--vram", "1GiB"},
                "b.safetensors")
                .exit_code,
            0);
  EXPECT_TRUE(contents(path("a.safetensors")) == contents(path("b.safetensors")));
}

TEST_F(RunCommand, ReportsAsJson) {
  const Outcome outcome = run({"--steps", "1", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["settings"]["steps"], "1");
  for (const char* space : {"device", "pinned", "host"})
    EXPECT_LE(report["memory"][space]["peak_bytes"], report["memory"][space]["planned_bytes"]) << space;
}

TEST_F(RunCommand, ABudgetTooSmallNamesOneThatWorks) {
  const Outcome refused = run({"--steps", "1", "--vram", "100kB", "--ram", "100kB"});
  EXPECT_EQ(refused.exit_code, 3);
  std::smatch match;
  ASSERT_TRUE(std::regex_search(refused.err, match, std::regex("smallest .*--vram (\\d+).*--ram (\\d+)")))
      << refused.err;
  const Outcome accepted = run({"--steps", "1", "--vram", match[1], "--ram", match[2]});
  EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
}

// Every life gets at least one step further, then dies a little later each time: between steps, in a step,
// while saving.
TEST_F(RunCommand, KilledAtAnyMomentItResumesToTheSameFile) {
  const std::vector<std::string> settings{"--steps", "12"};
  ASSERT_EQ(run(settings, "whole.safetensors").exit_code, 0);
  std::vector<std::string> resumed = settings;
  resumed.push_back("--resume");
  int kills = 0;
  while (!fs::exists(path("out.safetensors"))) {
    ASSERT_LT(kills, 13);
    const pid_t child = start(arguments(path("out.safetensors"), fs::exists(state()) ? resumed : settings));
    wait_for_a_step(child);
    std::this_thread::sleep_for(std::chrono::milliseconds(kills * 3));
    ::kill(child, SIGKILL);
    finish(child);
    ++kills;
  }
  EXPECT_TRUE(contents(path("whole.safetensors")) == contents(path("out.safetensors")));
}

TEST_F(RunCommand, InterruptedItKeepsItsStateAndSaysHowToGoOn) {
  const std::vector<std::string> settings{"--steps", "100"};
  const pid_t child = start(arguments(path("out.safetensors"), settings));
  wait_for_a_step(child);
  ::kill(child, SIGINT);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("--resume"), std::string::npos) << outcome.err;
  EXPECT_TRUE(fs::exists(state()));
  EXPECT_FALSE(fs::exists(path("out.safetensors")));
  const Outcome other_seed = run({"--steps", "100", "--seed", "1", "--resume"});
  EXPECT_EQ(other_seed.exit_code, 2);
  EXPECT_NE(other_seed.err.find("seed was 0, is 1"), std::string::npos) << other_seed.err;
  EXPECT_EQ(run({"--steps", "100", "--resume"}).exit_code, 0);
}

TEST_F(RunCommand, AKillAndALostTerminalKeepTheStateToo) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    fs::remove(state());
    const pid_t child = start(arguments(path("out.safetensors"), {"--steps", "1000"}));
    wait_for_a_step(child);
    ::kill(child, signal);
    const Outcome outcome = finish(child);
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.err;
    EXPECT_NE(outcome.err.find("--resume"), std::string::npos) << outcome.err;
    EXPECT_TRUE(fs::exists(state()));
  }
}

TEST_F(RunCommand, ASignalItWasStartedToIgnoreStaysIgnored) {
  ::signal(SIGHUP, SIG_IGN);  // as nohup does; the child inherits it
  const pid_t child = start(arguments(path("out.safetensors"), {"--steps", "40"}));
  ::signal(SIGHUP, SIG_DFL);
  wait_for_a_step(child);
  ::kill(child, SIGHUP);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(path("out.safetensors")));
}

// With a file size limit of no block at all any reservation fails: the budget must have spoken before.
TEST_F(RunCommand, TheBudgetIsCheckedBeforeTheDisk) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's runtime writes a file before main";
#endif
  const std::string command =
      fmt::format("ulimit -f 0; exec {} run -m {} -i {} -o {} --vram 1kB 2>/dev/null", H3S_PROGRAM,
                  path("model.safetensors"), path("inputs.safetensors"), path("out.safetensors"));
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
}

TEST_F(RunCommand, RefusesInOneLineBeforeComputing) {
  const auto refused = [&](const Outcome& outcome, int exit_code, const std::string& mention) {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_NE(outcome.err.find(mention), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("step"), std::string::npos) << outcome.err;
  };
  refused(run({}, "no/such/folder/out.safetensors"), 4, "no/such/folder");
  refused(run({}, "model.safetensors"), 2, "model.safetensors");
  refused(run({"--resume"}), 4, "out.state.safetensors");
  refused(run({"--denoise", "0.5"}), 2, "initial.video");
  refused(run({"--denoise", "0"}), 2, "denoise");
  // A budget that nothing fits must not be planned with first.
  refused(run({"--resume", "--vram", "1kB"}), 4, "out.state.safetensors");
  refused(run({"--denoise", "0.5", "--vram", "1kB"}), 2, "initial.video");
  refused(run({"--shift-video", "nan", "--vram", "1kB"}), 2, "--shift-video");
  refused(run({"--vram", "8 apples"}), 2, "8 apples");
}

TEST_F(RunCommand, AChunkNeedsASchedule) {
  EXPECT_EQ(run({"--q-chunk", "64"}).exit_code, 2);
}

TEST_F(RunCommand, AFullDiskIsFoundBeforeComputing) {
  // A file size limit stands in for the disk: the shell sets it, the run inherits it.
  const std::string command =
      fmt::format("ulimit -f 1; exec {} run -m {} -i {} -o {} 2>{}", H3S_PROGRAM, path("model.safetensors"),
                  path("inputs.safetensors"), path("out.safetensors"), path("stderr"));
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_FALSE(fs::exists(path("out.safetensors")));
  EXPECT_FALSE(fs::exists(state()));
  for (const auto& entry : fs::directory_iterator(directory_)) EXPECT_NE(entry.path().extension(), ".tmp");
}

}  // namespace
}  // namespace h3s::test
