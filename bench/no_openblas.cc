#include "base/error.h"
#include "comparators.h"

namespace h3s::bench::openblas {

bool available() {
  return false;
}
nlohmann::json describe() {
  return {{"missing", "built without OpenBLAS"}};
}
void set_num_threads(int) {}
void sgemm(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t) {
  fail(Status::kUnsupported, "[bench] built without OpenBLAS");
}

}  // namespace h3s::bench::openblas
