#include "ledger/reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "io/json.h"

namespace h3s::ledger {
namespace {

// One line's object; what is missing or of another kind is an error that names file, line and field.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& reason) const {
    fail(Status::kBadFile, "{}: {}", where_, reason);
  }
  std::string text(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_string()) refuse(fmt::format("expected \"{}\" to be text", name));
    return value.get<std::string>();
  }
  std::int64_t count(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX)
      refuse(fmt::format("expected \"{}\" to be a whole number from 0", name));
    return value.get<std::int64_t>();
  }
  std::optional<std::int64_t> count_or_null(const char* name) const {
    return at(name).is_null() ? std::nullopt : std::optional(count(name));
  }
  double number(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_number()) refuse(fmt::format("expected \"{}\" to be a number", name));
    return value.get<double>();
  }
  SpaceBytes spaces(const char* name) const {
    const Fields inner(object_at(name), fmt::format("{}: \"{}\"", where_, name));
    return {inner.count("device"), inner.count("pinned"), inner.count("host")};
  }
  std::map<std::string, std::string> texts(const char* name) const {
    const nlohmann::json& object = object_at(name);
    const Fields inner(object, fmt::format("{}: \"{}\"", where_, name));
    std::map<std::string, std::string> out;
    for (const auto& item : object.items()) out[item.key()] = inner.text(item.key().c_str());
    return out;
  }

 private:
  const nlohmann::json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) refuse(fmt::format("\"{}\" is missing", name));
    return *found;
  }
  const nlohmann::json& object_at(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_object()) refuse(fmt::format("expected \"{}\" to be an object", name));
    return value;
  }

  const nlohmann::json& object_;
  std::string where_;
};

Header read_header(const Fields& f) {
  if (f.text("type") != "header") f.refuse("the first line must be the header");
  if (const std::int64_t format = f.count("format"); format != kFormat)
    f.refuse(fmt::format("expected format {}, got {}", kFormat, format));
  return {.version = f.text("h3stream"),
          .started = f.text("started"),
          .model = f.text("model"),
          .plan = f.text("plan"),
          .device = f.text("device"),
          .backend = f.text("backend"),
          .compiler = f.text("compiler"),
          .settings = f.texts("settings"),
          .tokens = f.count("tokens"),
          .blocks = f.count("blocks"),
          .steps = f.count("steps"),
          .first_step = f.count("first_step"),
          .planned_bytes = f.spaces("planned_bytes"),
          .device_budget_bytes = f.count_or_null("device_budget_bytes"),
          .ram_budget_bytes = f.count_or_null("ram_budget_bytes"),
          .device_total_bytes = f.count_or_null("device_total_bytes"),
          .cpus = f.count("cpus"),
          .memory_bytes = f.count("memory_bytes")};
}

exec::Phase read_phase(const Fields& f) {
  const std::string name = f.text("phase");
  const auto found = std::find(exec::kPhaseNames.begin(), exec::kPhaseNames.end(), name);
  if (found == exec::kPhaseNames.end())
    f.refuse(fmt::format("expected one of {}, got phase \"{}\"", fmt::join(exec::kPhaseNames, ", "), name));
  return static_cast<exec::Phase>(found - exec::kPhaseNames.begin());
}

MemoryReading read_memory(const Fields& f) {
  return {
      .held_bytes = {f.count("device_bytes"), f.count("pinned_bytes"), f.count("host_bytes")},
      .peak_bytes = {f.count("device_peak_bytes"), f.count("pinned_peak_bytes"), f.count("host_peak_bytes")},
      .process = {f.count("rss_anon_bytes"), f.count("rss_file_bytes"), f.count("rss_shmem_bytes"),
                  f.count("swap_bytes")},
      .device_used_bytes = f.count_or_null("device_used_bytes")};
}

PhaseLine read_phase_line(const Fields& f, const Header& header) {
  PhaseLine line{.step = f.count("step"),
                 .block = f.count_or_null("block").value_or(-1),
                 .phase = read_phase(f),
                 .visits = f.count("visits"),
                 .device_ms = f.number("device_ms"),
                 .begin_ms = f.number("begin_ms"),
                 .end_ms = f.number("end_ms"),
                 .wall_begin_ms = f.number("wall_begin_ms"),
                 .wall_end_ms = f.number("wall_end_ms"),
                 .memory = read_memory(f)};
  if (line.step > header.steps) f.refuse(fmt::format("step {} of {}", line.step, header.steps));
  if (line.block >= header.blocks) f.refuse(fmt::format("block {} of {}", line.block, header.blocks));
  if (line.end_ms < line.begin_ms || line.device_ms < 0) f.refuse("a time that ends before it begins");
  return line;
}

void read_line(const std::string& text, const std::string& where, Ledger& ledger, bool first) {
  const nlohmann::json object = io::parse_json_object(text, where);
  const Fields fields(object, where);
  if (first) {
    ledger.header = read_header(fields);
    return;
  }
  const std::string type = fields.text("type");
  if (ledger.closing) fields.refuse("a line after the closing one");
  if (type == "phase")
    ledger.phases.push_back(read_phase_line(fields, ledger.header));
  else if (type == "remark")
    ledger.remarks.push_back({fields.count("step"), fields.count("block"), fields.text("what"),
                              fields.text("cause"), fields.text("text")});
  else if (type == "close")
    ledger.closing = Closing{fields.text("outcome"), fields.count("steps_done"), fields.number("wall_ms"),
                             fields.spaces("peak_bytes")};
  else
    fields.refuse(fmt::format("expected type phase, remark or close, got \"{}\"", io::printable(type)));
}

}  // namespace

std::string ledger_path(const std::string& directory) {
  return (std::filesystem::path(directory) / "ledger.jsonl").string();
}

Ledger read_ledger(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    fail(Status::kBadFile, "{}: not a regular file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(Status::kIo, "{}: no ledger there that can be opened", path);
  Ledger ledger{.path = path};
  std::string text;
  std::int64_t number = 0;
  while (std::getline(file, text)) {
    // The writer ends every line: one without its end was cut off by a kill or a full disk.
    if (file.eof()) {
      ledger.truncated = true;
      break;
    }
    ++number;
    read_line(text, fmt::format("{}:{}", path, number), ledger, number == 1);
  }
  if (number == 0) fail(Status::kBadFile, "{}: holds no whole line: the run ended before it began", path);
  return ledger;
}

}  // namespace h3s::ledger
