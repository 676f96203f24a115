// What is written can be read, and a final name never holds half a file.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>

#include "file_fixtures.h"
#include "io/output_file.h"
#include "io/safetensors.h"

namespace h3s::io {
namespace {

class Writer : public testing::Test {
 protected:
  TempDir directory_;
  std::string path_ = directory_.file("out.safetensors");
};

const std::vector<TensorDecl> kTensors{{"byte", DType::kU8, {3}},
                                       {"unaligned", DType::kF32, {2, 1}},
                                       {"nothing", DType::kBF16, {0, 7}},
                                       {"scalar \"é\"", DType::kF64, {}}};
const std::string kData =
    "abc"
    "01234567"
    "ABCDEFGH";

TEST_F(Writer, RoundTrip) {
  SafetensorsWriter writer(path_, kTensors, {{"key", "value\n"}});
  writer.write(kData.data(), 5);  // pieces need not match tensors
  writer.write(kData.data() + 5, 0);
  writer.write(kData.data() + 5, kData.size() - 5);
  writer.finish();
  const auto file = SafetensorsReader::open(path_);
  ASSERT_EQ(file.tensors().size(), kTensors.size());
  for (const TensorDecl& tensor : kTensors) {
    EXPECT_EQ(file.at(tensor.name).shape, tensor.shape);
    EXPECT_EQ(file.at(tensor.name).dtype, tensor.dtype);
  }
  EXPECT_EQ(std::memcmp(file.data(file.at("unaligned")), "01234567", 8), 0);
  EXPECT_EQ(std::memcmp(file.data(file.at("scalar \"é\"")), "ABCDEFGH", 8), 0);
  EXPECT_EQ(file.metadata().at("key"), "value\n");
  EXPECT_EQ(directory_.num_files(), 1u);
}

TEST_F(Writer, DataStartsAtAMultipleOfEight) {
  for (const char* name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"}) {
    SafetensorsWriter writer(path_, {{name, DType::kU8, {1}}});
    writer.write("x", 1);
    writer.finish();
    EXPECT_EQ((std::filesystem::file_size(path_) - 1) % 8, 0u) << name;
  }
}

TEST_F(Writer, NoTensors) {
  SafetensorsWriter(path_, {}).finish();
  EXPECT_TRUE(SafetensorsReader::open(path_).tensors().empty());
}

TEST_F(Writer, ReplacesAnOldFileOnlyAtTheEnd) {
  write_file(path_, "old");
  {
    SafetensorsWriter writer(path_, kTensors);
    writer.write(kData.data(), 5);
    EXPECT_EQ(read_file(path_), "old");
  }
  EXPECT_EQ(read_file(path_), "old");
  EXPECT_EQ(directory_.num_files(), 1u);
}

TEST_F(Writer, TooFewAndTooManyBytes) {
  SafetensorsWriter writer(path_, kTensors);
  writer.write(kData.data(), kData.size() - 1);
  expect_refused([&] { writer.finish(); }, Status::kInvalidArgument, path_,
                 {"19 bytes were declared, 18 written"});
  expect_refused([&] { writer.write("xy", 2); }, Status::kInvalidArgument, path_, {"19 bytes were declared"});
}

TEST_F(Writer, DeclarationsTheReaderWouldRefuse) {
  const auto refused = [&](const std::vector<TensorDecl>& tensors, const std::vector<std::string>& pieces) {
    expect_refused([&] { SafetensorsWriter(path_, tensors); }, Status::kInvalidArgument, path_, pieces);
    EXPECT_EQ(directory_.num_files(), 0u);
  };
  refused({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}, {": a: ", "twice"});
  refused({{"a", DType::kU8, {-1}}}, {": a: ", "bad shape"});
  refused({{"a", DType::kF64, {std::int64_t{1} << 62}}}, {": a: ", "bad shape"});
  refused({{"\xff", DType::kU8, {1}}}, {"UTF-8"});
  refused({{"__metadata__", DType::kU8, {1}}}, {"__metadata__"});
}

TEST_F(Writer, PathsThatCannotBeWritten) {
  const std::string in_no_directory = directory_.file("absent/out.safetensors");
  expect_refused([&] { SafetensorsWriter(in_no_directory, kTensors); }, Status::kIo, in_no_directory,
                 {"cannot create", "No such file"});
  write_file(directory_.file("file"), "");
  const std::string under_a_file = directory_.file("file/out.safetensors");
  expect_refused([&] { SafetensorsWriter(under_a_file, kTensors); }, Status::kIo, under_a_file,
                 {"cannot create", "Not a directory"});
  std::filesystem::create_directory(path_);
  expect_refused([&] { SafetensorsWriter(path_, kTensors); }, Status::kIo, path_, {"not a regular file"});
}

TEST_F(Writer, StaleTemporaryFilesAreNoObstacle) {
  std::string stale;
  { stale = OutputFile(path_).temporary_path(); }
  const std::size_t serial = stale.find('.', path_.size() + 1) + 1;
  const int next = std::stoi(stale.substr(serial)) + 1;
  write_file(fmt::format("{}{}.tmp", stale.substr(0, serial), next), "stale");
  OutputFile file(path_);
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(read_file(path_), "new");
}

// Runs body in a child and returns its wait status.
int in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(Writer, KilledHalfWay) {
  const int status = in_child([&] {
    SafetensorsWriter writer(path_, kTensors);
    writer.write(kData.data(), 5);
    ::kill(::getpid(), SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(directory_.num_files(), 1u);  // the temporary file, named after the process
}

// A file size limit stands for a full disk: the same calls fail, with another text.
void limit_file_size(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST_F(Writer, DiskTooSmallIsRefusedBeforeAnyWork) {
  const int status = in_child([&] {
    limit_file_size(100000);
    try {
      SafetensorsWriter(path_, {{"big", DType::kU8, {1000000}}});
    } catch (const Error& e) {
      const std::string text = e.what();
      if (e.status() == Status::kIo && text.rfind(path_ + ": cannot ", 0) == 0 &&
          text.find("File too large") != text.npos)
        ::_exit(77);
    }
  });
  EXPECT_EQ(WEXITSTATUS(status), 77);
  EXPECT_EQ(directory_.num_files(), 0u);
}

TEST_F(Writer, DiskFullWhileWriting) {
  const int status = in_child([&] {
    limit_file_size(100000);
    try {
      OutputFile file(path_);
      const std::string piece(60000, 'x');
      file.write(piece.data(), piece.size());
      file.write(piece.data(), piece.size());  // the system takes a part of it first
    } catch (const Error& e) {
      const std::string text = e.what();
      if (e.status() == Status::kIo && text == path_ + ": cannot write: File too large") ::_exit(77);
    }
  });
  EXPECT_EQ(WEXITSTATUS(status), 77);
  EXPECT_EQ(directory_.num_files(), 0u);
}

TEST_F(Writer, NothingIsCommittedAfterAFailure) {
  const int status = in_child([&] {
    limit_file_size(1000);
    OutputFile file(path_);
    const std::string piece(2000, 'x');
    EXPECT_THROW(file.write(piece.data(), piece.size()), Error);
    EXPECT_THROW(file.write(piece.data(), 1), Error);
    EXPECT_THROW(file.commit(), Error);
    if (!testing::Test::HasFailure()) ::_exit(77);
  });
  EXPECT_EQ(WEXITSTATUS(status), 77);
  EXPECT_EQ(directory_.num_files(), 0u);
}

}  // namespace
}  // namespace h3s::io
