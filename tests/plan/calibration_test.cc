// Calibration files: what is written is read back, what is not a calibration is refused by name.
#include "plan/calibration.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "plan/cards.h"

namespace h3s::test {
namespace {

using nlohmann::json;

class CalibrationFile : public testing::Test {
 protected:
  CalibrationFile()
      : path_((std::filesystem::temp_directory_path() / fmt::format("h3s-calibration-{}.json", ::getpid()))
                  .string()) {}
  ~CalibrationFile() override { std::filesystem::remove(path_); }

  void write(const std::string& text) { std::ofstream(path_) << text; }
  std::string refusal(const std::string& text, Status status = Status::kBadFile) {
    write(text);
    try {
      plan::read_calibration(path_);
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), status);
      return e.what();
    }
    ADD_FAILURE() << "accepted: " << text;
    return "";
  }
  static json valid() { return json::parse(calibration_text(plan::expect(*plan::find_card("rtx4090")))); }
  std::string refusal_with(const std::string& key, const json& value) {
    json changed = valid();
    changed[key] = value;
    return refusal(changed.dump());
  }

  std::string path_;
};

TEST_F(CalibrationFile, IsReadBackAsWritten) {
  plan::Calibration c = plan::expect(*plan::find_card("h200"));
  c.device = "a \"quoted\" card";
  c.int8.extra_rows = 1.0 / 3.0;
  write(calibration_text(c));
  EXPECT_EQ(calibration_text(plan::read_calibration(path_)), calibration_text(c));
  EXPECT_EQ(plan::read_calibration(path_).int8.extra_rows, 1.0 / 3.0);
}

TEST_F(CalibrationFile, EveryFieldMustBeThereAndNoOther) {
  const json all = valid();
  for (const auto& [key, value] : all.items()) {
    json changed = all;
    changed.erase(key);
    EXPECT_NE(refusal(changed.dump()).find(key + ": the key is missing"), std::string::npos);
  }
  EXPECT_NE(refusal_with("gpu_ops", 1).find("gpu_ops: unknown key"), std::string::npos);
}

TEST_F(CalibrationFile, NumbersMustBeFiniteAndInRange) {
  for (const json& value : {json(0), json(-1), json("fast"), json(), json(true), json::array({1})})
    EXPECT_NE(refusal_with("int8_ops", value).find("int8_ops: expected a number above 0"), std::string::npos);
  EXPECT_NE(refusal_with("call_seconds", -1e-9).find("expected a number from 0"), std::string::npos);
  EXPECT_NE(refusal_with("context_bytes", 1e300).find("context_bytes"), std::string::npos);
  std::string text = valid().dump();
  text.replace(text.find("\"int8_ops\":"), 11, "\"int8_ops\":1e999,\"x\":");
  refusal(text);
}

TEST_F(CalibrationFile, OtherFilesAreRefused) {
  for (const char* text : {"", "{", "[]", "3", "null", "{} {}", "\xff\xfe"}) refusal(text);
  EXPECT_NE(refusal_with("h3stream_calibration", 2).find("expected version 1, got 2"), std::string::npos);
  EXPECT_NE(refusal_with("device", "").find("device"), std::string::npos);
  EXPECT_NE(refusal_with("overlaps", 1).find("overlaps: expected true or false"), std::string::npos);
  refusal(std::string(1 << 17, ' '));
  std::filesystem::remove(path_);
  EXPECT_THROW(plan::read_calibration(path_), Error);
  EXPECT_THROW(plan::read_calibration("/"), Error);
}

TEST_F(CalibrationFile, LiesWhereCachesLie) {
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(plan::default_calibration_path("NVIDIA H200"), "/cache/h3stream/calibration-NVIDIA-H200.json");
  ::setenv("XDG_CACHE_HOME", "relative: to be ignored", 1);
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ(plan::default_calibration_path("../cpu"), "/home/me/.cache/h3stream/calibration----cpu.json");
  ::unsetenv("HOME");
  EXPECT_EQ(plan::default_calibration_path("cpu"), "");
}

}  // namespace
}  // namespace h3s::test
