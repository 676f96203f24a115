// What the reader accepts, and what it refuses with which words.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "file_fixtures.h"
#include "io/safetensors.h"

namespace h3s::io {
namespace {

constexpr const char* kTwoTensors =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
const std::string kElevenBytes = "01234567abc";

class Reader : public testing::Test {
 protected:
  SafetensorsReader open(const std::string& bytes, const ReadOptions& options = {}) {
    write_file(path_, bytes);
    return SafetensorsReader::open(path_, options);
  }
  void refused(const std::string& bytes, const std::vector<std::string>& pieces) {
    write_file(path_, bytes);
    expect_refused([&] { SafetensorsReader::open(path_); }, Status::kBadFile, path_, pieces);
  }
  void header_refused(const std::string& header, const std::vector<std::string>& pieces) {
    refused(safetensors_bytes(header, kElevenBytes), pieces);
  }

  TempDir directory_;
  std::string path_ = directory_.file("model.safetensors");
};

TEST_F(Reader, TensorsInTheOrderOfTheirData) {
  const auto file = open(safetensors_bytes(
      R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      kElevenBytes));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(std::memcmp(file.data(file.at("b")), "abc", 3), 0);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.trailing_bytes(), 0u);
}

TEST_F(Reader, MetadataScalarsAndZeroSizes) {
  const auto file = open(safetensors_bytes(
      R"({"__metadata__":{"k":"v \" é"},"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
      R"("z":{"dtype":"I64","shape":[1099511627776,1099511627776,0],"data_offsets":[8,8]}}   )",
      "01234567"));
  EXPECT_EQ(file.metadata().at("k"), "v \" é");
  EXPECT_EQ(file.at("s").elements(), 1);
  EXPECT_EQ(file.at("z").bytes(), 0u);
}

TEST_F(Reader, UnalignedTensorsAreReadable) {
  const auto file = open(safetensors_bytes(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
      "x\x01\x02\x03\x04"));
  EXPECT_EQ(std::memcmp(file.data(file.at("b")), "\x01\x02\x03\x04", 4), 0);
}

TEST_F(Reader, EmptyObjectIsAFileWithoutTensors) {
  EXPECT_TRUE(open(safetensors_bytes("{}", "")).tensors().empty());
}

TEST_F(Reader, CopiesShareTheMapping) {
  std::optional<SafetensorsReader> first = open(safetensors_bytes(kTwoTensors, kElevenBytes));
  const SafetensorsReader second = *first;
  const std::byte* data = second.data(second.at("b"));
  first.reset();
  std::filesystem::remove(path_);
  EXPECT_EQ(std::memcmp(data, "abc", 3), 0);
}

TEST_F(Reader, HintsChangeNothing) {
  const auto file = open(safetensors_bytes(kTwoTensors, kElevenBytes));
  const TensorInfo& info = file.at("b");
  file.will_need(file.data(info), info.bytes());
  file.release_pages(file.data(info), info.bytes());
  EXPECT_EQ(std::memcmp(file.data(info), "abc", 3), 0);
}

TEST_F(Reader, TruncatedByOneByte) {
  refused(safetensors_bytes(kTwoTensors, kElevenBytes.substr(0, 10)),
          {": b: ", "truncated", "1 bytes are missing"});
}

TEST_F(Reader, TruncatedByOneTensor) {
  refused(safetensors_bytes(kTwoTensors, kElevenBytes.substr(0, 8)),
          {": b: ", "truncated", "3 bytes are missing"});
}

TEST_F(Reader, TruncatedInsideTheHeader) {
  refused(safetensors_bytes(kTwoTensors, kElevenBytes).substr(0, 50),
          {": header: ", "truncated", "are missing"});
}

TEST_F(Reader, EveryTruncationIsRefused) {
  const std::string whole = safetensors_bytes(kTwoTensors, kElevenBytes);
  for (std::size_t length = 0; length < whole.size(); ++length) refused(whole.substr(0, length), {});
}

TEST_F(Reader, HeaderLengthOfTwoToTheSixty) {
  std::string bytes = safetensors_bytes(kTwoTensors, kElevenBytes);
  bytes[7] = 0x10;  // little-endian: 2^60 and a little
  refused(bytes, {": header: ", "over the limit of 100000000 bytes"});
}

TEST_F(Reader, HeaderLengthOfAllOnes) {
  refused(std::string(8, '\xff') + "{}", {": header: ", "18446744073709551615"});
}

TEST_F(Reader, ShortAndEmptyFiles) {
  refused("", {": header: ", "0 bytes"});
  refused("1234567", {": header: ", "7 bytes"});
  refused(std::string(8, '\0'), {": header: ", "does not start with '{'"});
}

TEST_F(Reader, OtherFilesUnderTheName) {
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 20970379616\n",
          {"Git LFS pointer", "git lfs pull"});
  refused("GGUF\x03\0\0\0\0\0", {"GGUF"});
  refused("PK\x03\x04zipzipzip", {"zip archive"});
  refused("<!DOCTYPE html><html></html>", {"web page"});
}

TEST_F(Reader, TrailingBytesNeedTheSwitch) {
  const std::string bytes = safetensors_bytes(kTwoTensors, kElevenBytes) + std::string(65, '\n');
  refused(bytes, {": data: ", "65 bytes follow the last tensor", "--allow-trailing-bytes"});
  EXPECT_EQ(open(bytes, {.allow_trailing_bytes = true}).trailing_bytes(), 65u);
}

TEST_F(Reader, TheSwitchForgivesNothingElse) {
  write_file(path_, safetensors_bytes(kTwoTensors, "0123"));
  expect_refused([&] { SafetensorsReader::open(path_, {.allow_trailing_bytes = true}); }, Status::kBadFile,
                 path_, {"truncated"});
}

TEST_F(Reader, DuplicateKeys) {
  const std::string entry = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  header_refused("{" + entry + "," + entry + "}", {": a: ", "twice"});
  header_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                 {": a: ", "dtype", "twice"});
  header_refused(R"({"__metadata__":{"k":"1","k":"2"}})", {": __metadata__: ", "k", "twice"});
  header_refused(R"({"__metadata__":{},"__metadata__":{}})", {": __metadata__: ", "twice"});
}

TEST_F(Reader, EscapedSpellingsOfAKeyAreTheSameKey) {
  header_refused(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                 R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                 {": a: ", "twice"});
}

TEST_F(Reader, OverlapAndHole) {
  header_refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                 R"("b":{"dtype":"U8","shape":[4],"data_offsets":[7,11]}})",
                 {": b: ", "overlaps", "by 1 bytes"});
  header_refused(R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]},)"
                 R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
                 {": b: ", "1 bytes after", "hole"});
  header_refused(R"({"a":{"dtype":"U8","shape":[10],"data_offsets":[1,11]}})", {": a: ", "hole"});
}

TEST_F(Reader, SizesThatDisagree) {
  header_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,11]}})",
                 {": a: ", "need 8 bytes", "span 11"});
  header_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", {": a: ", "backwards"});
  header_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,11]}})",
                 {": a: ", "overflows"});
}

TEST_F(Reader, NumbersThatAreNoSizes) {
  header_refused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,11]}})",
                 {": a: ", "shape", "negative", "-1"});
  header_refused(R"({"a":{"dtype":"U8","shape":[11.0],"data_offsets":[0,11]}})",
                 {": a: ", "shape", "not an integer"});
  header_refused(R"({"a":{"dtype":"U8","shape":[1e1],"data_offsets":[0,11]}})",
                 {": a: ", "shape", "not an integer"});
  header_refused(R"({"a":{"dtype":"U8","shape":[11],"data_offsets":[0,18446744073709551615]}})",
                 {": a: ", "data_offsets", "out of range"});
  header_refused(R"({"a":{"dtype":"U8","shape":[11],"data_offsets":[0,99999999999999999999999]}})",
                 {": a: ", "data_offsets"});
  header_refused(R"({"a":{"dtype":"U8","shape":[11],"data_offsets":[0,5,11]}})", {": a: ", "more than 2"});
  header_refused(R"({"a":{"dtype":"U8","shape":[11],"data_offsets":[11]}})", {": a: ", "two numbers"});
}

TEST_F(Reader, FieldsOfTheWrongKind) {
  header_refused(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})",
                 {": a: ", "unknown dtype \"F33\""});
  header_refused(R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", {": a: ", "a number"});
  header_refused(R"({"a":{"dtype":"U8","shape":"2","data_offsets":[0,8]}})", {": a: ", "a string"});
  header_refused(R"({"a":{"dtype":"U8","shape":[[2]],"data_offsets":[0,8]}})", {": a: ", "an array"});
  header_refused(R"({"a":{"dtype":"U8","shape":[{}],"data_offsets":[0,8]}})", {": a: ", "an object"});
  header_refused(R"({"a":{"dtype":"U8","shape":null,"data_offsets":[0,8]}})", {": a: ", "null"});
  header_refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}})",
                 {": a: ", "unknown field \"x\""});
  header_refused(R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", {": a: ", "shape is missing"});
  header_refused(R"({"a":[]})", {": a: ", "an array"});
  header_refused(R"({"__metadata__":{"k":1}})", {": __metadata__: ", "a number"});
  header_refused(R"({"__metadata__":"text"})", {": __metadata__: ", "a string"});
}

TEST_F(Reader, HeadersThatAreNoJsonObject) {
  header_refused("[]", {": header: ", "does not start with '{'"});
  header_refused(" {}", {": header: ", "does not start with '{'"});
  header_refused("{\"a\":", {": header: ", "JSON"});
  header_refused("{}x", {": header: ", "JSON"});
  header_refused(std::string("{}\0\0", 4), {": header: ", "NUL"});
  header_refused("{\"\xff\":1}", {": header: ", "UTF-8"});
}

TEST_F(Reader, NamesCannotBreakTheMessage) {
  header_refused(R"({"a\n\u0007\\":{"dtype":"F33","shape":[],"data_offsets":[0,8]}})",
                 {R"(: a\x0a\x07\x5c: )"});
  header_refused("{\"" + std::string(5000, 'n') + R"(":{"dtype":"F33","shape":[],"data_offsets":[0,8]}})",
                 {"nnn... (5000 bytes)"});
}

TEST_F(Reader, DeepNestingIsRefusedAtOnce) {
  header_refused("{\"a\":" + std::string(1000000, '['), {": a: "});
}

TEST_F(Reader, NotAFile) {
  EXPECT_NO_FATAL_FAILURE(expect_refused([&] { SafetensorsReader::open(directory_.file("absent")); },
                                         Status::kIo, directory_.file("absent"), {"No such file"}));
  std::filesystem::create_directory(directory_.file("dir"));
  expect_refused([&] { SafetensorsReader::open(directory_.file("dir")); }, Status::kBadFile,
                 directory_.file("dir"), {"directory"});
  ASSERT_EQ(::mkfifo(directory_.file("pipe").c_str(), 0600), 0);
  expect_refused([&] { SafetensorsReader::open(directory_.file("pipe")); }, Status::kBadFile,
                 directory_.file("pipe"), {"not a regular file"});
}

}  // namespace
}  // namespace h3s::io
