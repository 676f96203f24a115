// The libraries ops are compared with. Built without one, its functions are there and say so: openblas.cc and
// no_openblas.cc, onednn.cc and no_onednn.cc have the same symbols.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

namespace h3s::bench {

namespace openblas {
bool available();
nlohmann::json describe();  // kernel and configuration, or why it is missing
void set_num_threads(int num_threads);
// y[m][n] = x[m][k] w[n][k]^T, all float and dense.
void sgemm(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n, std::int64_t k);
}  // namespace openblas

namespace onednn {
bool available();
nlohmann::json describe();

// y[m][n] = x[m][k] w[n][k]^T in int32, x unsigned and w signed 8 bits. w is reordered to the layout the
// library prefers once, in the constructor.
class Int8Matmul {
 public:
  Int8Matmul(const std::uint8_t* x, const std::int8_t* w, std::int32_t* y, std::int64_t m, std::int64_t n,
             std::int64_t k, int num_threads);
  ~Int8Matmul();
  Int8Matmul(const Int8Matmul&) = delete;
  Int8Matmul& operator=(const Int8Matmul&) = delete;

  void run();
  std::string implementation() const;  // in the library's words; names the instruction set

 private:
  struct State;
  std::unique_ptr<State> state_;
};
}  // namespace onednn

}  // namespace h3s::bench
