// Placements of random histories: nothing that lives together touches, and the arena is near the least
// possible.
#include "mem/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace h3s::test {
namespace {

using mem::Placed;
using mem::Placement;
using mem::Space;

constexpr int kHistories = 300;
// First fit of a random history wastes something; the worst of these histories wastes this much at most.
constexpr double kMostWasted = 0.05, kMostWastedOnAverage = 0.001;

// Allocations and releases in random order, sizes from 1 byte to 1 MiB evenly by magnitude, some never
// released.
std::vector<Placed> random_history(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  mem::Recording recording;
  mem::Accountant books(mem::make_dry_allocator());
  books.observe(std::ref(recording));
  std::vector<mem::Buffer> held;
  const int num_buffers = 5 + static_cast<int>(random() % 150);
  for (int i = 0; i < num_buffers;) {
    if (!held.empty() && random() % 5 < 2) {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
      continue;
    }
    const double magnitude = std::exp2(static_cast<double>(random() % 2000) / 100);
    const auto bytes = static_cast<std::int64_t>(seed % 2 == 0 ? magnitude : random() % (16 << 10));
    held.push_back(books.allocate(mem::kSpaces[random() % 3], bytes, "buffer " + std::to_string(i++)));
  }
  books.observe({});
  return recording.buffers();
}

void expect_disjoint(const Placement& placement) {
  for (const Placed& a : placement.buffers) {
    EXPECT_EQ(a.offset % mem::kAlignment, 0);
    EXPECT_LE(a.offset + mem::occupied_bytes(a.bytes), placement.arena_bytes[mem::index(a.space)]) << a.tag;
    for (const Placed& b : placement.buffers)
      EXPECT_FALSE(&a < &b && a.lives_with(b) && a.touches(b)) << a.tag << " and " << b.tag;
  }
}

TEST(Placement, RandomHistories) {
  double worst = 0, sum = 0;
  int exact = 0, arenas = 0;
  for (std::uint64_t seed = 1; seed <= kHistories; ++seed) {
    SCOPED_TRACE(seed);
    const Placement placement = mem::place(random_history(seed));
    expect_disjoint(placement);
    for (const Space space : mem::kSpaces) {
      const std::int64_t least = placement.live_peak_bytes[mem::index(space)];
      const std::int64_t size = placement.arena_bytes[mem::index(space)];
      EXPECT_GE(size, least);
      if (least == 0) continue;
      const double wasted = static_cast<double>(size - least) / static_cast<double>(least);
      worst = std::max(worst, wasted);
      sum += wasted;
      exact += size == least;
      ++arenas;
    }
  }
  EXPECT_LE(worst, kMostWasted);
  EXPECT_LE(sum / arenas, kMostWastedOnAverage);
  std::printf("%d arenas: %d at the least possible size, worst %.1f %% above, %.2f %% on average\n", arenas,
              exact, 100 * worst, 100 * sum / arenas);
}

TEST(Placement, IsDeterministic) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Placement a = mem::place(random_history(seed)), b = mem::place(random_history(seed));
    ASSERT_EQ(a.buffers.size(), b.buffers.size());
    for (std::size_t i = 0; i < a.buffers.size(); ++i) EXPECT_EQ(a.buffers[i].offset, b.buffers[i].offset);
  }
}

Placed buffer(std::int64_t bytes, std::int64_t first, std::int64_t end) {
  return {Space::kDevice, bytes, "", first, end, 0};
}

TEST(Placement, LifetimesThatFollowEachOtherShareBytes) {
  const Placement placement = mem::place({buffer(1000, 0, 2), buffer(500, 2, 4), buffer(400, 3, 5)});
  EXPECT_EQ(placement.arena_bytes[0], 1024);
  EXPECT_EQ(placement.live_peak_bytes[0], 1024);
  EXPECT_EQ(placement.arena_bytes[1], 0);
}

TEST(Placement, NothingNeedsNothing) {
  EXPECT_EQ(mem::place({}).arena_bytes, (std::array<std::int64_t, mem::kNumSpaces>{}));
  EXPECT_EQ(mem::place({buffer(0, 0, 1)}).arena_bytes[0], mem::kAlignment);
}

}  // namespace
}  // namespace h3s::test
