#include "plan/calibration.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "io/json.h"

namespace h3s::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::uintmax_t kMaxFileBytes = 1 << 16;  // a calibration has about one KiB

struct Field {
  const char* key;
  double* value;
  bool may_be_zero;
};

// Every number of a calibration by its key; the order is that of the file.
std::array<Field, 23> fields(Calibration& c) {
  return {{{"int8_ops", &c.int8.ops, false},
           {"int8_extra_rows", &c.int8.extra_rows, true},
           {"int8_extra_outputs", &c.int8.extra_outputs, true},
           {"bf16_ops", &c.bf16.ops, false},
           {"bf16_extra_rows", &c.bf16.extra_rows, true},
           {"bf16_extra_outputs", &c.bf16.extra_outputs, true},
           {"f32_ops", &c.f32.ops, false},
           {"f32_extra_rows", &c.f32.extra_rows, true},
           {"f32_extra_outputs", &c.f32.extra_outputs, true},
           {"attention_bf16_ops", &c.attention_bf16.ops, false},
           {"attention_bf16_min_rows", &c.attention_bf16.min_rows, true},
           {"attention_f32_ops", &c.attention_f32.ops, false},
           {"attention_f32_min_rows", &c.attention_f32.min_rows, true},
           {"row_bytes", &c.row_bytes, false},
           {"quantize_bytes", &c.quantize_bytes, false},
           {"call_seconds", &c.call_seconds, true},
           {"upload_bytes", &c.upload_bytes, false},
           {"download_bytes", &c.download_bytes, false},
           {"copy_row_bytes", &c.copy_row_bytes, true},
           {"host_bytes", &c.host_bytes, false},
           {"loading_bytes", &c.loading_bytes, false},
           {"merge_weights", &c.merge.weights, false},
           {"merge_ops", &c.merge.ops, false}}};
}

std::string read_text(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) fail(Status::kIo, "{}: no such file", path);
  if (fs::file_size(path, error) > kMaxFileBytes)
    fail(Status::kBadFile, "{}: file: over {} bytes: not a calibration", path, kMaxFileBytes);
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) fail(Status::kIo, "{}: could not be read", path);
  return text.str();
}

// Takes keys out of an object one by one; what is left over was not expected.
class ObjectReader {
 public:
  ObjectReader(const std::string& path, const json& object) : path_(path), object_(object) {}

  const json& take(const char* key) {
    taken_.insert(key);
    const auto found = object_.find(key);
    if (found == object_.end()) fail(Status::kBadFile, "{}: {}: the key is missing", path_, key);
    return *found;
  }

  double number(const char* key, bool may_be_zero) {
    const json& value = take(key);
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(std::isfinite(number) && (number > 0 || (may_be_zero && number == 0))))
      fail(Status::kBadFile, "{}: {}: expected a number {} 0, got {}", path_, key,
           may_be_zero ? "from" : "above",
           io::printable(value.dump(-1, ' ', true, json::error_handler_t::replace)));
    return number;
  }

  bool flag(const char* key) {
    const json& value = take(key);
    if (!value.is_boolean()) fail(Status::kBadFile, "{}: {}: expected true or false", path_, key);
    return value.get<bool>();
  }

  std::string text(const char* key) {
    const json& value = take(key);
    if (!value.is_string() || value.get<std::string>().empty())
      fail(Status::kBadFile, "{}: {}: expected a text", path_, key);
    return value.get<std::string>();
  }

  void require_no_other() const {
    for (const auto& [key, value] : object_.items())
      if (!taken_.contains(key)) fail(Status::kBadFile, "{}: {}: unknown key", path_, io::printable(key));
  }

 private:
  const std::string& path_;
  const json& object_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace

Calibration read_calibration(const std::string& path) {
  const json object = io::parse_json_object(read_text(path), path + ": file");
  ObjectReader reader(path, object);
  if (const json& version = reader.take("h3stream_calibration"); version != kVersion)
    fail(Status::kBadFile, "{}: h3stream_calibration: expected version {}, got {}", path, kVersion,
         io::printable(version.dump(-1, ' ', true, json::error_handler_t::replace)));
  Calibration c;
  c.device = reader.text("device");
  c.measured = reader.flag("measured");
  c.overlaps = reader.flag("overlaps");
  for (const Field& field : fields(c)) *field.value = reader.number(field.key, field.may_be_zero);
  c.file_bytes = reader.number("file_bytes", /*may_be_zero=*/true);
  constexpr double kMostContextBytes = 0x1p40;
  const double context = reader.number("context_bytes", /*may_be_zero=*/true);
  if (context > kMostContextBytes)
    fail(Status::kBadFile, "{}: context_bytes: expected at most {}, got {}", path, kMostContextBytes,
         context);
  c.context_bytes = static_cast<std::int64_t>(context);
  reader.require_no_other();
  return c;
}

std::string calibration_text(const Calibration& calibration) {
  Calibration c = calibration;
  ordered_json object = {{"h3stream_calibration", kVersion},
                         {"device", c.device},
                         {"measured", c.measured},
                         {"overlaps", c.overlaps}};
  for (const Field& field : fields(c)) object[field.key] = *field.value;
  object["file_bytes"] = c.file_bytes;
  object["context_bytes"] = c.context_bytes;
  return object.dump(1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

std::string default_calibration_path(const std::string& device) {
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (cache != nullptr && *cache == '/')
    folder = cache;
  else if (home != nullptr && *home != '\0')
    folder = fs::path(home) / ".cache";
  else
    return "";
  std::string name = device;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  return (folder / "h3stream" / ("calibration-" + name + ".json")).string();
}

}  // namespace h3s::plan
