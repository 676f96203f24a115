// What the op tests share: seeded inputs, guarded outputs, bitwise comparison, and every backend of this
// machine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/dispatch.h"
#include "kernels/backend.h"

namespace h3s::test {

inline const std::vector<std::int64_t> kSizes{1, 31, 32, 33, 63, 64, 65, 127, 129, 259, 4099};

// What a failure names.
struct Case {
  std::string op;
  std::string shape;
  std::uint64_t seed = 0;
  std::string backend = {};
};

std::string describe(const Case& c, DType dtype);

// Values of T between guard bytes. A new buffer, and one after poison(), holds 0xFF everywhere (NaN as a
// float).
template <typename T>
class Guarded {
 public:
  explicit Guarded(std::int64_t count) : count_(count), bytes_(size_bytes() + 2 * kGuardBytes) { poison(); }

  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuardBytes); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + kGuardBytes); }
  std::int64_t count() const { return count_; }
  T& operator[](std::int64_t i) { return data()[i]; }

  void poison() { std::memset(bytes_.data(), 0xFF, bytes_.size()); }
  bool guards_intact() const {
    for (std::size_t i = 0; i < kGuardBytes; ++i)
      if (bytes_[i] != 0xFF || bytes_[bytes_.size() - 1 - i] != 0xFF) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuardBytes = 256;
  std::size_t size_bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }

  std::int64_t count_;
  std::vector<std::uint8_t> bytes_;
};

// `count` normal values times `scale`, rounded to T.
template <typename T>
std::vector<T> random_values(std::int64_t count, std::uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& v : values) v = from_float<T>(normal(engine));
  return values;
}

std::vector<std::int8_t> random_codes(std::int64_t count, std::uint64_t seed);

// "row 3, column 17: 1.5 (0x3fc0) expected, 1.25 (0x3fa0) found", or "" when all bits agree.
template <typename T>
std::string first_difference(const T* want, const T* got, std::int64_t count, std::int64_t row_length);

// Fails naming the case, the number of differing elements and the first of them.
template <typename T>
void expect_same_bits(const Case& c, const T* want, const T* got, std::int64_t count,
                      std::int64_t row_length);

template <typename T>
void expect_same_bits(const Case& c, const Guarded<T>& want, const Guarded<T>& got, std::int64_t row_length) {
  EXPECT_TRUE(got.guards_intact()) << describe(c, kDTypeOf<T>) << ": wrote outside its output";
  expect_same_bits(c, want.data(), got.data(), want.count(), row_length);
}

// Calls fn(begin, rows) for parts of [0, m) of 1, 3, 7, 15, ... rows and a ragged tail.
void for_each_part(std::int64_t m, const std::function<void(std::int64_t begin, std::int64_t rows)>& fn);

kernels::Backend& definition_backend();

// Calls fn(backend) for 1, 2, 3 and 5 threads on every instruction set this machine has. Scratch memory
// starts poisoned with NaN.
void for_each_backend(const std::function<void(kernels::Backend&)>& fn);

// One of them: the best instruction set with two threads.
kernels::Backend& best_backend();

}  // namespace h3s::test
