// `h3stream bench`: speed of the CPU ops beside what else the machine can do, checked before timed.
//
// Every row runs the op and its comparator in turn, in the same process, so that both see the same machine.
// Values are medians; the spread is (largest - smallest) / median.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace h3s::bench {

struct Options {
  std::string filter;                        // "linear", "int8", "attention" or "rows"; empty: all
  int num_threads = 0;                       // 0: as many as the machine has
  std::vector<std::int64_t> m{1024, 16, 1};  // rows of the linear layers
  int rounds = 7;                            // timed calls of each op
  std::string command;                       // what to type to repeat the run
};

// Throws Error(kInternal) when a check fails. Progress goes to stderr.
nlohmann::json run(const Options& options);

// The table of a result of run(), in Markdown.
std::string table(const nlohmann::json& result);

}  // namespace h3s::bench
