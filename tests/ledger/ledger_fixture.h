// Folders that go away, and a ledger with known numbers.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "ledger/reader.h"

namespace h3s::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() / fmt::format("h3s-ledger.{}.{}", ::getpid(), count++);
    std::filesystem::create_directory(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return file(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream stream(path_ / name, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path path_;
};

// The text of the Error that fn throws, which must have `status`.
template <typename Fn>
std::string refusal(Status status, Fn fn) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline ledger::Header known_header() {
  return {.version = "1.2.3",
          .started = "2026-11-30T12:00:00Z",
          .model = "a.safetensors",
          .plan = "resident q=1",
          .device = "cpu",
          .backend = "cpu (2 threads)",
          .compiler = "gcc",
          .settings = {{"seed", "7"}},
          .tokens = 100,
          .blocks = 2,
          .steps = 3,
          .first_step = 0,
          .planned_bytes = {1000, 200, 30},
          .device_budget_bytes = 1100,
          .cpus = 2,
          .memory_bytes = 1 << 30};
}

inline ledger::PhaseLine known_line(std::int64_t step, std::int64_t block, exec::Phase phase, double begin_ms,
                                    double end_ms) {
  return {.step = step,
          .block = block,
          .phase = phase,
          .visits = 2,
          .device_ms = end_ms - begin_ms,
          .begin_ms = begin_ms,
          .end_ms = end_ms,
          .wall_begin_ms = begin_ms,
          .wall_end_ms = end_ms,
          .memory = {.held_bytes = {900, 190, 20},
                     .peak_bytes = {950, 195, 25},
                     .process = {5000, 600, 70, 8},
                     .device_used_bytes = 4000}};
}

// One step: embed 10 ms, block 0 of 30 ms, block 1 of 60 ms, final 5 ms.
inline std::vector<ledger::PhaseLine> known_step() {
  using exec::Phase;
  return {known_line(1, -1, Phase::kEmbed, 0, 10), known_line(1, 0, Phase::kKv, 10, 15),
          known_line(1, 0, Phase::kAttn, 15, 30),  known_line(1, 0, Phase::kMlp, 30, 40),
          known_line(1, 1, Phase::kKv, 40, 50),    known_line(1, 1, Phase::kAttn, 50, 80),
          known_line(1, 1, Phase::kMlp, 80, 100),  known_line(1, -1, Phase::kFinal, 100, 105)};
}

inline std::string known_text() {
  std::string text = ledger::line_text(to_json(known_header()));
  for (const ledger::PhaseLine& line : known_step()) text += ledger::line_text(to_json(line, 1000));
  text += ledger::line_text(to_json(ledger::Remark{1, 1, "slow", "paging", "slow: pages"}));
  return text + ledger::line_text(to_json(ledger::Closing{"done", 1, 105, {950, 195, 25}}));
}

}  // namespace h3s::test
