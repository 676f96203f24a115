#include "ops/op_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace h3s::test {
namespace {

template <typename T>
std::string show(T v) {
  if constexpr (std::is_same_v<T, float>)
    return fmt::format("{} (0x{:08x})", v, std::bit_cast<std::uint32_t>(v));
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return fmt::format("{} (0x{:02x})", v, static_cast<std::uint8_t>(v));
  else
    return fmt::format("{} (0x{:04x})", to_float(v), v.bits);
}

template <typename T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace

std::string describe(const Case& c, DType dtype) {
  return fmt::format("{} {} {} seed {} on {}", c.op, dtype_name(dtype), c.shape, c.seed, c.backend);
}

std::vector<std::int8_t> random_codes(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_int_distribution<int> code(-128, 127);
  std::vector<std::int8_t> codes(static_cast<std::size_t>(count));
  for (std::int8_t& v : codes) v = static_cast<std::int8_t>(code(engine));
  return codes;
}

template <typename T>
std::string first_difference(const T* want, const T* got, std::int64_t count, std::int64_t row_length) {
  std::int64_t num_different = 0, first = 0;
  for (std::int64_t i = count - 1; i >= 0; --i)
    if (!same_bits(want[i], got[i])) ++num_different, first = i;
  if (num_different == 0) return "";
  return fmt::format("{} of {} differ, first at row {}, column {}: {} expected, {} found", num_different,
                     count, first / row_length, first % row_length, show(want[first]), show(got[first]));
}

template <typename T>
void expect_same_bits(const Case& c, const T* want, const T* got, std::int64_t count,
                      std::int64_t row_length) {
  const std::string difference = first_difference(want, got, count, row_length);
  constexpr DType kDType = std::is_same_v<T, std::int8_t> ? DType::kI8 : kDTypeOf<T>;
  EXPECT_TRUE(difference.empty()) << describe(c, kDType) << ": " << difference;
}

template void expect_same_bits(const Case&, const float*, const float*, std::int64_t, std::int64_t);
template void expect_same_bits(const Case&, const F16*, const F16*, std::int64_t, std::int64_t);
template void expect_same_bits(const Case&, const BF16*, const BF16*, std::int64_t, std::int64_t);
template void expect_same_bits(const Case&, const std::int8_t*, const std::int8_t*, std::int64_t,
                               std::int64_t);

void for_each_part(std::int64_t m, const std::function<void(std::int64_t begin, std::int64_t rows)>& fn) {
  for (std::int64_t begin = 0, rows = 1; begin < m; begin += rows, rows = 2 * rows + 1)
    fn(begin, std::min(rows, m - begin));
}

kernels::Backend& definition_backend() {
  static const std::unique_ptr<kernels::Backend> backend = cpu::make_definition_backend();
  return *backend;
}

}  // namespace h3s::test
