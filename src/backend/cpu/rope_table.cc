// rope_table: cosines and sines of angle = f(f(position) inv_freq), 48 of each per row.
//
// The angle is a float; cos and sin are taken in double by the C library, rounded to float, then to the
// compute type. Computed once a forward pass: scalar code on all threads is enough, and the definition is the
// same function. Bytes moved per row: 24 in, 96 elements out.
#include <cmath>
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

namespace h3s::cpu {
namespace {

template <typename T>
void rope_row(const kernels::RopeTableArgs& a, std::int64_t m) {
  constexpr std::int64_t kFreqs = kernels::kRopePairs / kernels::kRopeAxes;
  T* cosines = static_cast<T*>(a.table) + m * 2 * kernels::kRopePairs;
  T* sines = cosines + kernels::kRopePairs;
  for (std::int64_t i = 0; i < kernels::kRopePairs; ++i) {
    const auto position = static_cast<float>(a.positions[m * kernels::kRopeAxes + i / kFreqs]);
    const double angle = position * a.inv_freq[i % kFreqs];
    cosines[i] = from_float<T>(static_cast<float>(std::cos(angle)));
    sines[i] = from_float<T>(static_cast<float>(std::sin(angle)));
  }
}

}  // namespace

void rope_table_definition(const kernels::RopeTableArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "rope_table", [&]<typename T>() {
    for (std::int64_t m = 0; m < a.m; ++m) rope_row<T>(a, m);
  });
}

void rope_table(const kernels::RopeTableArgs& args, Workers& workers) {
  dispatch_dtype<BF16, float>(args.dtype, "rope_table", [&]<typename T>() {
    workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch) {
      for (std::int64_t m = begin; m < end; ++m) rope_row<T>(args, m);
    });
  });
}

}  // namespace h3s::cpu
