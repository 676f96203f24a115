// The page as text; ledger_page_test.py looks at it in a browser.
#include "ledger/page.h"

#include <nlohmann/json.hpp>

#include "ledger/ledger_fixture.h"

namespace h3s::test {
namespace {

nlohmann::json data_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t from = html.find(begin) + begin.size();
  return nlohmann::json::parse(html.substr(from, html.find("</script>", from) - from));
}

TEST(LedgerPage, HoldsEverythingAndAsksForNothing) {
  const TemporaryFolder folder;
  const std::string html = ledger::page_html(ledger::read_ledger(folder.write("l.jsonl", known_text())));
  for (const char* outside : {" src=", "href=", "http://www.w3.org/1999", "https://", "url(", "import "})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  const nlohmann::json data = data_of(html);
  EXPECT_EQ(data["rows"].size(), 8u);
  for (const nlohmann::json& row : data["rows"]) EXPECT_EQ(row.size(), data["columns"].size());
  EXPECT_EQ(data["remarks"][0]["cause"], "paging");
  EXPECT_EQ(data["header"]["tokens"], 100);
}

TEST(LedgerPage, NamesCannotBreakOutOfTheData) {
  const TemporaryFolder folder;
  ledger::Header header = known_header();
  header.model = "</script><script src=\"page.js\"></script>\"LEDGER\"<!--";
  const std::string html =
      ledger::page_html(ledger::read_ledger(folder.write("l.jsonl", ledger::line_text(to_json(header)))));
  EXPECT_EQ(data_of(html)["header"]["model"], header.model);
}

TEST(LedgerPage, IsWrittenBesideItsLedger) {
  const TemporaryFolder folder;
  folder.write("ledger.jsonl", known_text());
  ledger::write_page(folder.file(""));
  EXPECT_NE(folder.read("index.html").find("a.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace h3s::test
