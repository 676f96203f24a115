// Several files as one: what the index must say, and what reading through it gives.
#include <gtest/gtest.h>

#include <cstring>

#include "file_fixtures.h"
#include "io/safetensors.h"

namespace h3s::io {
namespace {

class Index : public testing::Test {
 protected:
  Index() {
    write_file(directory_.file("model-1.safetensors"),
               safetensors_bytes(R"({"__metadata__":{"k":"v"},)"
                                 R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                 R"("c":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                                 "abcd"));
    write_file(directory_.file("model-2.safetensors"),
               safetensors_bytes(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ef"));
  }
  SafetensorsReader open(const std::string& json, const ReadOptions& options = {}) {
    write_file(path_, json);
    return SafetensorsReader::open(path_, options);
  }
  void refused(const std::string& json, const std::vector<std::string>& pieces) {
    write_file(path_, json);
    expect_refused([&] { SafetensorsReader::open(path_); }, Status::kBadFile, path_, pieces);
  }
  static std::string map(const std::string& entries) { return R"({"weight_map":{)" + entries + "}}"; }

  TempDir directory_;
  std::string path_ = directory_.file("model.safetensors.index.json");
};

const std::string kGood = R"("a":"model-1.safetensors","b":"model-2.safetensors","c":"model-1.safetensors")";

std::string text(const SafetensorsReader& file, const char* key) {
  const TensorInfo& info = file.at(key);
  return {reinterpret_cast<const char*>(file.data(info)), info.bytes()};
}

TEST_F(Index, ReadsAsOneFile) {
  const auto file = open(R"({"metadata":{"total_size":6},"weight_map":{)" + kGood + "}}");
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(text(file, "a"), "abc");
  EXPECT_EQ(text(file, "b"), "ef");
  EXPECT_EQ(text(file, "c"), "d");
  EXPECT_EQ(file.metadata().at("k"), "v");
  EXPECT_EQ(file.trailing_bytes(), 0u);
  EXPECT_EQ(file.file_bytes(), std::filesystem::file_size(directory_.file("model-1.safetensors")) +
                                   std::filesystem::file_size(directory_.file("model-2.safetensors")));
  file.will_need(file.data(file.at("b")), 2);
  file.release_pages(file.data(file.at("b")), 2);
  EXPECT_EQ(text(file, "b"), "ef");
}

TEST_F(Index, KeysAndFilesMustAgree) {
  refused(map(R"("a":"model-1.safetensors","c":"model-1.safetensors","b":"model-1.safetensors")"),
          {": b: ", "places it in model-1.safetensors, which does not have it"});
  refused(map(R"("a":"model-1.safetensors","c":"model-2.safetensors","b":"model-2.safetensors")"),
          {": c: ", "is in model-1.safetensors, but the index places it in model-2.safetensors"});
  refused(map(R"("a":"model-1.safetensors")"), {": c: ", "the index does not have it"});
  refused(map(kGood + R"(,"d":"model-2.safetensors")"), {": d: ", "which does not have it"});
}

TEST_F(Index, NotAnIndex) {
  refused("", {"index", "empty"});
  refused("[]", {"index", "expected a JSON object"});
  refused("{}", {"weight_map"});
  refused(map(""), {"weight_map", "at least one key"});
  refused(R"({"weight_map":[]})", {"weight_map"});
  for (const char* name : {"7", "\"../model-1.safetensors\"", "\"/etc/passwd\"", "\"model-1.bin\"", "null",
                           "\"a\\u0000.safetensors\""})
    refused(map(fmt::format(R"("a":{})", name)), {": a: ", "beside the index"});
}

TEST_F(Index, ABrokenShardIsNamed) {
  const std::string shard = directory_.file("model-2.safetensors");
  write_file(shard, read_file(shard).substr(0, std::filesystem::file_size(shard) - 1));
  write_file(path_, map(kGood));
  expect_refused([&] { SafetensorsReader::open(path_); }, Status::kBadFile, shard, {": b: ", "truncated"});
  std::filesystem::remove(shard);
  expect_refused([&] { SafetensorsReader::open(path_); }, Status::kIo, shard, {"No such file"});
}

TEST_F(Index, TrailingBytesAreCountedOverAllShards) {
  const std::string shard = directory_.file("model-1.safetensors");
  write_file(shard, read_file(shard) + "xyz");
  const auto file = open(map(kGood), {.allow_trailing_bytes = true});
  EXPECT_EQ(file.trailing_bytes(), 3u);
  EXPECT_EQ(text(file, "b"), "ef");
}

}  // namespace
}  // namespace h3s::io
