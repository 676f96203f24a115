// `h3stream bench`: speed of the ops of a device beside what else the machine can do, checked before timed.
//
// Every row runs the op and its comparator in the same process, so that both see the same machine: in turn on
// the CPU, one after the other on a GPU, by its own clock. Values are medians; the spread is (largest -
// smallest) / median.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/select.h"

namespace h3s::bench {

inline constexpr const char* kDefaultBlockFormat = "int8_tensorwise";

struct Options {
  backend::DeviceChoice device;
  std::string filter;           // "linear", "int8", "attention", "rows" or "block"; empty: all of the device
  std::vector<std::int64_t> m;  // rows of the linear layers
  std::int64_t tokens = 0;      // of a GPU's attention and of the block
  std::string block_format = kDefaultBlockFormat;  // of its linears, as in tags; bf16
  std::int64_t lora_rank = 0;                      // of a LoRA of each of them; 0: none
  int rounds = 7;                                  // timed calls of each op
  std::string command;                             // what to type to repeat the run
};

// "failed" lists the groups that a failed check or an error ended, with the reason; their rows until then
// stay. Progress goes to stderr.
nlohmann::json run(const Options& options);

// The table of a result of run(), in Markdown.
std::string table(const nlohmann::json& result);

}  // namespace h3s::bench
