// The strict parse of small JSON texts out of files.
#include "io/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace h3s::io {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_json_object(text, "FILE: KEY");
    return "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.status()), static_cast<int>(Status::kBadFile));
    return e.what();
  }
}

TEST(Json, AcceptsAnObject) {
  const auto value = parse_json_object(R"( {"a": [1, {"b": null}], "c": "é"} )", "x");
  EXPECT_EQ(value["a"][0], 1);
  EXPECT_EQ(value["c"], "é");
}

TEST(Json, RefusesWhatTheLibraryWouldTake) {
  EXPECT_EQ(refusal(R"({"a":1,"a":2})"), "FILE: KEY: key \"a\" is given twice");
  EXPECT_EQ(refusal(R"({"o":{"a":1,"a":2}})"), "FILE: KEY: key \"a\" is given twice");
  EXPECT_EQ(refusal(std::string("{}\0x", 4)), "FILE: KEY: not valid JSON: it holds a NUL byte");
  EXPECT_EQ(refusal("{\"a\":" + std::string(100000, '[')), "FILE: KEY: nested deeper than 32");
  EXPECT_EQ(refusal("[1]"), "FILE: KEY: expected a JSON object, got array");
}

TEST(Json, RefusesWhatIsNoJson) {
  EXPECT_EQ(refusal(""), "FILE: KEY: empty, expected a JSON object");
  EXPECT_EQ(refusal("  \n"), "FILE: KEY: empty, expected a JSON object");
  EXPECT_EQ(refusal("{} x"), "FILE: KEY: not valid JSON at byte 4");
  EXPECT_NE(refusal("{\"a\": \"\xff\"}").find("not valid JSON"), std::string::npos);
}

TEST(Json, PrintableIsOneLineAndShort) {
  EXPECT_EQ(printable("a\n\t\x7f\\z"), "a\\x0a\\x09\\x7f\\x5cz");
  EXPECT_EQ(printable(std::string(300, 'a')).size(), 200 + std::string("... (300 bytes)").size());
}

}  // namespace
}  // namespace h3s::io
