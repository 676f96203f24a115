// Checks of option values, on the text as it was given: CLI11's own accept NaN, saturate numbers that are too
// large and take an empty text for "not given".
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace h3s::cli {

// A whole decimal number from low to high.
CLI::Validator whole(std::int64_t low, std::int64_t high);

// A finite number from low to high.
CLI::Validator within(double low, double high);

// A finite number above low, at most high.
CLI::Validator above(double low, double high);

// Any text but the empty one.
CLI::Validator not_empty();

// What parse_bytes takes: "8GiB", "1.5GB", "4096".
CLI::Validator byte_count();

// All of 64 bits, 0 to 2^64 - 1; a negative number from -2^63 stands for its two's complement, as in PyTorch.
CLI::Option* add_seed(CLI::App& command, const std::string& flag, std::uint64_t& seed,
                      const std::string& help);

}  // namespace h3s::cli
