#include "values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/bytes.h"
#include "base/error.h"

namespace h3s::cli {
namespace {

// The whole of `text` as a number.
template <typename T>
bool parse(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string expected(const std::string& what, const std::string& text) {
  return fmt::format("expected {}, got \"{}\"", what, text);
}

std::uint64_t parse_seed(const std::string& flag, const std::string& text) {
  std::uint64_t seed = 0;
  if (parse(text, seed)) return seed;
  std::int64_t negative = 0;
  if (parse(text, negative)) return static_cast<std::uint64_t>(negative);
  throw CLI::ValidationError(flag, expected("a whole number of 64 bits", text));
}

}  // namespace

CLI::Validator whole(std::int64_t low, std::int64_t high) {
  const std::string range = fmt::format("{} to {}", low, high);
  return {[=](std::string& text) {
            std::int64_t value = 0;
            const bool ok = parse(text, value) && value >= low && value <= high;
            return ok ? std::string() : expected("a whole number, " + range, text);
          },
          range};
}

CLI::Validator within(double low, double high) {
  const std::string range = fmt::format("{} to {}", low, high);
  return {[=](std::string& text) {
            double value = NAN;
            const bool ok = parse(text, value) && value >= low && value <= high;  // false for a NaN
            return ok ? std::string() : expected("a number, " + range, text);
          },
          range};
}

CLI::Validator above(double low, double high) {
  const std::string range = fmt::format("above {}, at most {}", low, high);
  return {[=](std::string& text) {
            double value = NAN;
            const bool ok = parse(text, value) && value > low && value <= high;
            return ok ? std::string() : expected("a number " + range, text);
          },
          range};
}

CLI::Validator not_empty() {
  return {[](std::string& text) { return text.empty() ? std::string("expected a value, got \"\"") : ""; },
          ""};
}

CLI::Validator byte_count() {
  return {[](std::string& text) {
            try {
              parse_bytes(text);
            } catch (const Error&) {
              return expected(std::string(kByteCountText), text);
            }
            return std::string();
          },
          ""};
}

CLI::Option* add_seed(CLI::App& command, const std::string& flag, std::uint64_t& seed,
                      const std::string& help) {
  return command
      .add_option_function<std::string>(
          flag, [flag, &seed](const std::string& text) { seed = parse_seed(flag, text); }, help)
      ->type_name("INT")
      ->default_str(std::to_string(seed));
}

}  // namespace h3s::cli
