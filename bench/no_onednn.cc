#include "base/error.h"
#include "comparators.h"

namespace h3s::bench::onednn {

struct Int8Matmul::State {};

bool available() {
  return false;
}
nlohmann::json describe() {
  return {{"missing", "built without oneDNN"}};
}
Int8Matmul::Int8Matmul(const std::uint8_t*, const std::int8_t*, std::int32_t*, std::int64_t, std::int64_t,
                       std::int64_t, int) {
  fail(Status::kUnsupported, "[bench] built without oneDNN");
}
Int8Matmul::~Int8Matmul() = default;
void Int8Matmul::run() {}
std::string Int8Matmul::implementation() const {
  return "";
}

}  // namespace h3s::bench::onednn
