// The C face of the comparators' module. OpenBLAS and oneDNN start threads and map memory when they are
// loaded, so the program loads them for `h3stream bench` alone.
#pragma once

#include <cstdint>

namespace h3s::bench {

// Strings live as long as the module; JSON text. Functions may throw std::exception.
struct ComparatorModule {
  bool has_openblas = false, has_onednn = false;
  const char* (*describe_openblas)() = nullptr;
  const char* (*describe_onednn)() = nullptr;
  void (*set_num_threads)(int num_threads) = nullptr;
  void (*sgemm)(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n,
                std::int64_t k) = nullptr;
  void* (*create_matmul)(const std::uint8_t* x, const std::int8_t* w, std::int32_t* y, std::int64_t m,
                         std::int64_t n, std::int64_t k, int num_threads) = nullptr;
  void (*run_matmul)(void* matmul) = nullptr;
  const char* (*matmul_implementation)(void* matmul) = nullptr;
  void (*destroy_matmul)(void* matmul) = nullptr;
};

// The module's one symbol.
inline constexpr const char* kComparatorSymbol = "h3s_comparator_module";
using ComparatorEntry = const ComparatorModule* (*)();

}  // namespace h3s::bench
