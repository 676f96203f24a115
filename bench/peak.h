// What the arithmetic units can do: loops of multiply-adds on registers alone.
#pragma once

#include <cstdint>

namespace h3s::bench {

// Each runs on the calling thread and returns the operations done (a multiply-add counts two).
double run_float_peak(std::int64_t iterations);
double run_int8_peak(std::int64_t iterations);  // 0 operations where the machine has no 8-bit dot product

}  // namespace h3s::bench
