#include "base/bytes.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace h3s {
namespace {

TEST(ParseBytes, AcceptsUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("1KiB"), 1024);
  EXPECT_EQ(parse_bytes("1kb"), 1000);
  EXPECT_EQ(parse_bytes("512MiB"), 512LL << 20);
  EXPECT_EQ(parse_bytes("8 GiB"), 8LL << 30);
  EXPECT_EQ(parse_bytes("1.5GB"), 1500000000);
  EXPECT_EQ(parse_bytes("2TiB"), 2LL << 40);
  EXPECT_EQ(parse_bytes(" 8 GiB "), 8LL << 30);
  for (const char* text : {"8Gi", "8G", "8gi"}) EXPECT_EQ(parse_bytes(text), 8LL << 30) << text;
  EXPECT_EQ(parse_bytes("3T"), 3LL << 40);
  EXPECT_EQ(parse_bytes("3Ti"), 3LL << 40);
}

TEST(ParseBytes, RefusesEverythingElse) {
  for (const char* text : {"", " ", "GiB", "8 G iB x", "-1GiB", "0", "0.1", "nan", "inf", "1e300GiB", "12XB",
                           "1GiB2", "--5", "0x10"}) {
    try {
      parse_bytes(text);
      ADD_FAILURE() << "accepted \"" << text << '"';
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find('"' + std::string(text) + '"'), std::string::npos) << e.what();
    }
  }
}

TEST(FormatBytes, PicksAUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(3LL << 30), "3.00 GiB");
}

TEST(FormatBytes, TellsUnequalCountsApart) {
  const std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(format_apart(gib, 2 * gib), (std::array<std::string, 2>{"1.00 GiB", "2.00 GiB"}));
  EXPECT_EQ(format_apart(gib + 1, gib), (std::array<std::string, 2>{"1073741825 B", "1073741824 B"}));
  EXPECT_EQ(format_apart(gib, gib), (std::array<std::string, 2>{"1.00 GiB", "1.00 GiB"}));
}

}  // namespace
}  // namespace h3s
