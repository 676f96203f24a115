// Common cards by their published figures, and the rates to expect of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plan/calibration.h"

namespace h3s::plan {

// Peaks of dense tensor products with 32-bit accumulation, as the maker publishes them.
struct Card {
  const char* name;  // "rtx4090"
  int sm;            // compute capability times 10
  int multiprocessors;
  double memory_gib;
  double bf16_tflops, int8_tops, f32_tflops;  // f32: without tensor cores
  double memory_gbps;                         // 1e9 bytes a second
  double link_gbps;                           // to the host, each way, before protocol
};

std::span<const Card> cards();  // ascending in memory, then in speed

// Null when there is none of that name.
const Card* find_card(std::string_view name);

// The card a driver's name means, for instance "NVIDIA GeForce RTX 4090"; null: not in the table.
const Card* match_card(std::string_view device_name);

// The card of the same architecture nearest in size; null: no card of that architecture.
const Card* nearest_card(int sm, int multiprocessors);

// Published peaks times the share of the H200's peak that was measured for the same kernels. `measured` only
// for the card they were measured on.
Calibration expect(const Card& card);

// A processor with that many threads, from rates measured on two threads of one.
Calibration expect_cpu(int threads);

// Device memory a program can get of a card: all but what the driver keeps for itself.
std::int64_t usable_bytes(const Card& card);

std::string card_names();  // "rtx2060, rtx3060, ..."

}  // namespace h3s::plan
