#include "ledger/page.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "io/output_file.h"
#include "ledger/page_files.h"
#include "ledger/summary.h"

namespace h3s::ledger {
namespace {

// A browser holds this many; what a longer run has more stays in the JSONL, and the page says so.
constexpr std::size_t kMostRows = 60'000;

// In the order of to_json's fields; a row holds their values.
Json columns() {
  Json names = Json::array();
  const Json line = to_json(PhaseLine{}, 0);
  for (const auto& item : line.items())
    if (item.key() != "type") names.push_back(item.key());
  return names;
}

Json row(const PhaseLine& line, std::int64_t planned_device_bytes) {
  Json values = Json::array();
  const Json fields = to_json(line, planned_device_bytes);
  for (const auto& item : fields.items())
    if (item.key() != "type") values.push_back(item.value());
  return values;
}

Json summary_json(const Ledger& ledger) {
  const Summary s = summarise(ledger);
  return {{"outcome", s.outcome},
          {"steps", s.steps},
          {"step_seconds", s.step_seconds},
          {"block_seconds", s.block_seconds},
          {"within_plan", within_plan(ledger, s)},
          {"peak_bytes", s.peak_bytes},
          {"rss_anon_bytes", s.rss_anon_bytes},
          {"rss_file_bytes", s.rss_file_bytes}};
}

Json data(const Ledger& ledger) {
  Json out{{"header", to_json(ledger.header)},
           {"columns", columns()},
           {"rows", Json::array()},
           {"rows_left_out", 0},
           {"remarks", Json::array()},
           {"summary", summary_json(ledger)},
           {"truncated", ledger.truncated}};
  const std::size_t shown = std::min(kMostRows, ledger.phases.size());
  for (std::size_t i = 0; i < shown; ++i)
    out["rows"].push_back(row(ledger.phases[i], ledger.header.planned_bytes[0]));
  out["rows_left_out"] = ledger.phases.size() - shown;
  for (const Remark& remark : ledger.remarks) out["remarks"].push_back(to_json(remark));
  return out;
}

// Text out of files must not end the script element it stands in.
std::string script_safe(const std::string& json) {
  std::string out;
  for (const char c : json) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

void replace(std::string& text, std::string_view marker, std::string_view content) {
  const std::size_t at = text.find(marker);
  H3S_ASSERT(at != text.npos);
  text.replace(at, marker.size(), content);
}

}  // namespace

// The data first: its text cannot hold a marker, the scripts' could.
std::string page_html(const Ledger& ledger) {
  std::string html(page_file("index.html"));
  replace(html, "\"LEDGER\"", script_safe(line_text(data(ledger))));
  replace(html, "<link rel=\"stylesheet\" href=\"page.css\">",
          fmt::format("<style>\n{}</style>", page_file("page.css")));
  for (const char* script : {"ledger.js", "chart.js", "timeline.js", "phases.js", "page.js"})
    replace(html, fmt::format("<script src=\"{}\"></script>", script),
            fmt::format("<script>\n{}</script>", page_file(script)));
  return html;
}

void write_page(const std::string& directory) {
  const std::string html = page_html(read_ledger(ledger_path(directory)));
  io::OutputFile file((std::filesystem::path(directory) / "index.html").string());
  file.write(html.data(), html.size());
  file.commit();
}

}  // namespace h3s::ledger
