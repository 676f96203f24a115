// Fills the C face with the comparators this build found.
#include "comparator_module.h"

#include <string>

#include "comparators.h"

namespace h3s::bench {
namespace {

struct Matmul {
  onednn::Int8Matmul matmul;
  std::string implementation;
};

const ComparatorModule& module() {
  static const std::string openblas_text = openblas::describe().dump(),
                           onednn_text = onednn::describe().dump();
  static const ComparatorModule module{
      .has_openblas = openblas::available(),
      .has_onednn = onednn::available(),
      .describe_openblas = [] { return openblas_text.c_str(); },
      .describe_onednn = [] { return onednn_text.c_str(); },
      .set_num_threads = openblas::set_num_threads,
      .sgemm = openblas::sgemm,
      .create_matmul = [](const std::uint8_t* x, const std::int8_t* w, std::int32_t* y, std::int64_t m,
                          std::int64_t n, std::int64_t k, int num_threads) -> void* {
        return new Matmul{onednn::Int8Matmul(x, w, y, m, n, k, num_threads), ""};
      },
      .run_matmul = [](void* matmul) { static_cast<Matmul*>(matmul)->matmul.run(); },
      .matmul_implementation =
          [](void* matmul) {
            auto* m = static_cast<Matmul*>(matmul);
            m->implementation = m->matmul.implementation();
            return m->implementation.c_str();
          },
      .destroy_matmul = [](void* matmul) { delete static_cast<Matmul*>(matmul); }};
  return module;
}

}  // namespace
}  // namespace h3s::bench

extern "C" __attribute__((visibility("default"))) const h3s::bench::ComparatorModule*
h3s_comparator_module() {
  return &h3s::bench::module();
}
