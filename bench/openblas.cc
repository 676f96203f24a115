#include <cblas.h>

#include <cstdlib>

#include "comparators.h"

namespace h3s::bench::openblas {
namespace {

nlohmann::json environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? nlohmann::json() : nlohmann::json(value);
}

}  // namespace

bool available() {
  return true;
}

nlohmann::json describe() {
  return {{"kernel", openblas_get_corename()},
          {"config", openblas_get_config()},
          {"OPENBLAS_CORETYPE", environment("OPENBLAS_CORETYPE")},
          {"OPENBLAS_L2_SIZE", environment("OPENBLAS_L2_SIZE")}};
}

void set_num_threads(int num_threads) {
  openblas_set_num_threads(num_threads);
}

void sgemm(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto narrow = [](std::int64_t v) { return static_cast<blasint>(v); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, narrow(m), narrow(n), narrow(k), 1.0f, x, narrow(k), w,
              narrow(k), 0.0f, y, narrow(n));
}

}  // namespace h3s::bench::openblas
