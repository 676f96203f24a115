// Counts what a test program asks of operator new, to show that broken files cannot make the reader allocate.
#pragma once

#include <cstdint>

namespace h3s {

// Bytes requested since the program started, all threads; never falls.
std::uint64_t allocated_bytes();

}  // namespace h3s
