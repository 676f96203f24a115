// A ledger's folder: made, claimed, never written over.
#include "ledger/directory.h"

#include "ledger/ledger_fixture.h"

namespace h3s::test {
namespace {

namespace fs = std::filesystem;

TEST(LedgerDirectory, IsMadeAndHoldsWhatIsAppendedAtOnce) {
  const TemporaryFolder folder;
  ledger::Directory directory(folder.file("new"));
  directory.append("a\n");
  directory.append("b\n");
  EXPECT_EQ(folder.read("new/ledger.jsonl"), "a\nb\n");
  EXPECT_TRUE(fs::exists(directory.page_path()));
}

TEST(LedgerDirectory, OtherFilesInItStay) {
  const TemporaryFolder folder;
  folder.write("old/notes", "mine");
  const ledger::Directory directory(folder.file("old"));
  EXPECT_EQ(folder.read("old/notes"), "mine");
}

TEST(LedgerDirectory, NothingIsWrittenOver) {
  const TemporaryFolder folder;
  for (const char* name : {"ledger.jsonl", "index.html"}) {
    const std::string path = fmt::format("{}.d", name);
    folder.write(fmt::format("{}/{}", path, name), "mine");
    const std::string reason =
        refusal(Status::kInvalidArgument, [&] { ledger::Directory(folder.file(path)); });
    EXPECT_NE(reason.find(name), std::string::npos) << reason;
    EXPECT_EQ(folder.read(fmt::format("{}/{}", path, name)), "mine");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.file(path)), fs::directory_iterator()), 1);
  }
}

TEST(LedgerDirectory, WhatCannotBeAFolderIsRefused) {
  const TemporaryFolder folder;
  folder.write("file", "");
  refusal(Status::kInvalidArgument, [&] { ledger::Directory(folder.file("file")); });
  refusal(Status::kIo, [&] { ledger::Directory(folder.file("no/parent")); });
  refusal(Status::kIo, [&] { ledger::Directory("/proc/h3s-ledger"); });
}

}  // namespace
}  // namespace h3s::test
