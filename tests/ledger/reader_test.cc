// What is written is read back; anything else is refused by line and field.
#include "ledger/reader.h"

#include "ledger/ledger_fixture.h"

namespace h3s::test {
namespace {

TEST(LedgerReader, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  const ledger::Ledger read = ledger::read_ledger(folder.write("l.jsonl", known_text()));
  EXPECT_FALSE(read.truncated);
  ASSERT_EQ(read.phases.size(), 8u);
  ASSERT_EQ(read.remarks.size(), 1u);
  ASSERT_TRUE(read.closing);
  EXPECT_EQ(to_json(read.header), to_json(known_header()));
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(to_json(read.phases[i], 1000), to_json(known_step()[i], 1000)) << i;
  EXPECT_EQ(read.remarks[0].cause, "paging");
  EXPECT_EQ(read.closing->peak_bytes, (ledger::SpaceBytes{950, 195, 25}));
}

TEST(LedgerReader, EveryCutLeavesALedgerOfTheLinesBefore) {
  const TemporaryFolder folder;
  const std::string text = known_text();
  const std::size_t header_end = text.find('\n') + 1;
  for (std::size_t size = header_end; size < text.size();
       size += text[size] == '\n' || text[size - 1] == '\n' ? 1 : 7) {
    const ledger::Ledger read = ledger::read_ledger(folder.write("cut.jsonl", text.substr(0, size)));
    ASSERT_EQ(read.truncated, text[size - 1] != '\n') << size;
    ASSERT_EQ(static_cast<std::ptrdiff_t>(1 + read.phases.size() + read.remarks.size()),
              std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size), '\n'))
        << size;
    ASSERT_FALSE(read.closing);
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, header_end - 1})
    EXPECT_NE(refusal(Status::kBadFile,
                      [&] { ledger::read_ledger(folder.write("cut.jsonl", text.substr(0, size))); })
                  .find("no whole line"),
              std::string::npos);
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(LedgerReader, RefusalsNameLineAndField) {
  const TemporaryFolder folder;
  const std::string good = known_text();
  const auto refused = [&](const std::string& text, const std::string& where, const std::string& what) {
    const std::string path = folder.write("bad.jsonl", text);
    const std::string reason = refusal(Status::kBadFile, [&] { ledger::read_ledger(path); });
    EXPECT_NE(reason.find(path + ":" + where), std::string::npos) << reason;
    EXPECT_NE(reason.find(what), std::string::npos) << reason;
  };
  refused(with(good, "\"format\":1", "\"format\":2"), "1", "expected format 1, got 2");
  refused(with(good, "\"type\":\"header\"", "\"type\":\"phase\""), "1", "header");
  refused(with(good, "\"tokens\":100", "\"tokens\":-1"), "1", "\"tokens\"");
  refused(with(good, "\"pinned\":200", "\"pinned\":2.5"), "1", "\"pinned\"");
  refused(with(good, "\"seed\":\"7\"", "\"seed\":7"), "1", "\"seed\"");
  refused(with(good, "\"phase\":\"kv\"", "\"phase\":\"kq\""), "3", "kq");
  refused(with(good, "\"visits\":2", "\"visit\":2"), "2", "\"visits\" is missing");
  refused(with(good, "\"block\":1", "\"block\":2"), "6", "block 2 of 2");
  refused(with(good, "\"step\":1", "\"step\":4"), "2", "step 4 of 3");
  refused(with(good, "\"end_ms\":10.0", "\"end_ms\":-10.0"), "2", "ends before");
  refused(with(good, "\"device_ms\":10.0", "\"device_ms\":\"10\""), "2", "\"device_ms\"");
  refused(with(good, "\"type\":\"remark\"", "\"type\":\"note\""), "10", "note");
  refused(with(good, "{\"type\":\"phase\"", "[{\"type\":\"phase\""), "2", "");
  refused(with(good, "\n", "\n\n"), "2", "");
  refused(good + good, "12", "after the closing");
  EXPECT_NE(refusal(Status::kIo, [&] { ledger::read_ledger(folder.file("none")); }).find("none"),
            std::string::npos);
  refusal(Status::kBadFile, [&] { ledger::read_ledger(folder.file("")); });
}

TEST(LedgerReader, NamesThatAreNoTextAreWrittenAsText) {
  const TemporaryFolder folder;
  ledger::Header header = known_header();
  header.model = "\xff\n</script>";
  const ledger::Ledger read =
      ledger::read_ledger(folder.write("l.jsonl", ledger::line_text(to_json(header))));
  EXPECT_EQ(read.header.model, "\xEF\xBF\xBD\n</script>");
}

}  // namespace
}  // namespace h3s::test
