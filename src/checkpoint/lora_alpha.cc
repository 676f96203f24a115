#include "checkpoint/lora_alpha.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/float16.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using nlohmann::json;

// One number for all pairs; of them the first that is there.
constexpr std::array kAlphaEntries{"alpha", "lora_alpha", "network_alpha", "ss_network_alpha"};
// Objects of a number for each module, or the end of modules' names.
constexpr std::array kPatternEntries{"alpha_pattern", "network_alphas", "networkAlphas"};
constexpr const char* kAdapterEntry = "lora_adapter_metadata";  // the settings of an adapter, an object
constexpr const char* kRootEntry = "use_rslora";
constexpr const char* kDoraEntry = "use_dora";
// Says that the stored tensors have alpha in them already.
constexpr const char* kBakedEntry = "baked_scale";

std::string entry(std::string_view name) {
  return fmt::format("__metadata__.{}", io::printable(name));
}

bool says_true(std::string_view text) {
  return text == "true" || text == "True" || text == "1";
}

bool is_end_of(std::string_view name, std::string_view end) {
  return name == end || (name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
}

template <typename T>
double read_as(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(value);
  else
    return to_float(value);
}

// Empty: no number.
std::optional<double> read_scalar(const std::byte* data, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return read_as<double>(data);
    case DType::kF32:
      return read_as<float>(data);
    case DType::kF16:
      return read_as<F16>(data);
    case DType::kBF16:
      return read_as<BF16>(data);
    case DType::kI64:
      return read_as<std::int64_t>(data);
    case DType::kI32:
      return read_as<std::int32_t>(data);
    case DType::kI16:
      return read_as<std::int16_t>(data);
    case DType::kI8:
      return read_as<std::int8_t>(data);
    case DType::kU64:
      return read_as<std::uint64_t>(data);
    case DType::kU32:
      return read_as<std::uint32_t>(data);
    case DType::kU16:
      return read_as<std::uint16_t>(data);
    case DType::kU8:
      return read_as<std::uint8_t>(data);
    default:
      return {};
  }
}

}  // namespace

LoraAlphas::LoraAlphas(const io::SafetensorsReader& file) : file_(file) {
  const auto& metadata = file.metadata();
  if (const auto dora = metadata.find(kDoraEntry); dora != metadata.end() && says_true(dora->second))
    fail(Status::kUnsupported, "{}: {}: DoRA, which is not supported", file.path(), entry(kDoraEntry));
  if (metadata.contains(kBakedEntry)) return;
  if (const auto root = metadata.find(kRootEntry); root != metadata.end())
    over_root_ = says_true(root->second);
  for (const char* name : kPatternEntries)
    if (const auto found = metadata.find(name); found != metadata.end())
      read_patterns(entry(name), found->second);
  for (const char* name : kAlphaEntries)
    if (const auto found = metadata.find(name); found != metadata.end() && !all_)
      all_ = {entry(name), number(entry(name), found->second)};
  if (metadata.contains(kAdapterEntry)) read_adapter_settings();
}

void LoraAlphas::refuse(const std::string& where, std::string_view reason) const {
  fail(Status::kBadFile, "{}: {}: {}", file_.path(), where, reason);
}

// Settings by name, that of the adapted model before it: "transformer.lora_alpha". Those of other models of a
// pipeline, a text encoder's, are not this file's.
void LoraAlphas::read_adapter_settings() {
  const std::string where = entry(kAdapterEntry);
  const json settings =
      io::parse_json_object(file_.metadata().at(kAdapterEntry), fmt::format("{}: {}", file_.path(), where));
  for (const auto& [key, value] : settings.items()) {
    constexpr std::string_view kModel = "transformer.";
    const std::string_view name = key.starts_with(kModel) ? std::string_view(key).substr(kModel.size()) : key;
    const std::string at = fmt::format("{}.{}", where, io::printable(key));
    if (name == "alpha_pattern" && !value.is_null()) read_patterns(at, value.dump());
    if (name == "lora_alpha" && !value.is_null() && !all_) all_ = {at, number(at, value.dump())};
    if (name == kRootEntry && value == true) over_root_ = true;
    if (name == kDoraEntry && value == true)
      fail(Status::kUnsupported, "{}: {}: DoRA, which is not supported", file_.path(), at);
  }
}

void LoraAlphas::read_patterns(const std::string& where, const std::string& text) {
  const json object = io::parse_json_object(text, fmt::format("{}: {}", file_.path(), where));
  for (const auto& [key, value] : object.items()) {
    const std::string at = fmt::format("{}.{}", where, io::printable(key));
    if (key.empty() || key.find_first_of("*+?[](){}|^$\\") != std::string::npos)
      refuse(at, "expected the name of a module, or its end; regular expressions are not supported");
    constexpr std::string_view kAlpha = ".alpha";
    const std::string_view name = key;
    patterns_.push_back(
        {std::string(name.ends_with(kAlpha) ? name.substr(0, name.size() - kAlpha.size()) : name),
         number(at, value.dump())});
  }
  source_ = where;
}

double LoraAlphas::number(const std::string& where, const std::string& text) const {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    refuse(where, fmt::format("expected a number, got \"{}\"", io::printable(text)));
  return value;
}

double LoraAlphas::stored_alpha(const io::TensorInfo& info) const {
  const std::string where = io::printable(info.name);
  if (info.elements() != 1)
    refuse(where, fmt::format("expected one value, got shape [{}]", fmt::join(info.shape, ",")));
  const std::optional<double> alpha = read_scalar(file_.data(info), info.dtype);
  if (!alpha)
    fail(Status::kUnsupported, "{}: {}: dtype must be an integer's or a float's of 16 bits or more, got {}",
         file_.path(), where, dtype_name(info.dtype));
  if (!std::isfinite(*alpha)) refuse(where, fmt::format("alpha is {}", *alpha));
  return *alpha;
}

// Of several patterns the longest: the one that says most.
std::optional<LoraAlphas::Alpha> LoraAlphas::of(const std::string& module,
                                                const io::TensorInfo* stored) const {
  if (stored != nullptr) return Alpha{stored->name, stored_alpha(*stored)};
  const Alpha* best = nullptr;
  for (const Alpha& pattern : patterns_)
    if ((is_end_of(module, pattern.key) || is_end_of(pattern.key, module)) &&
        (best == nullptr || pattern.key.size() > best->key.size()))
      best = &pattern;
  if (best != nullptr) return Alpha{fmt::format("{}.{}", source_, io::printable(best->key)), best->value};
  return all_;
}

}  // namespace h3s::checkpoint
