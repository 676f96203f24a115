#include "sample/schedules.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace h3s::sample {
namespace {

std::vector<float> schedule(Scheduler scheduler, std::int64_t steps, double denoise = 1.0,
                            double shift = 12.0) {
  return make_schedule({.scheduler = scheduler, .steps = steps, .shift = shift, .denoise = denoise});
}

TEST(SigmaTable, HasStocksEnds) {
  const std::vector<float> table = sigma_table(12.0);
  ASSERT_EQ(table.size(), 1000u);
  EXPECT_EQ(table.front(), 0.011869436129927635f);
  EXPECT_EQ(table.back(), 1.0f);
  EXPECT_EQ(sigma_table(1.0)[499], 0.5f);
}

TEST(Simple, EightStepsAreStocksBits) {
  EXPECT_EQ(schedule(Scheduler::kSimple, 8),
            (std::vector<float>{1.0f, 0.9882352948188782f, 0.9729729890823364f, 0.9523809552192688f,
                                0.9230769276618958f, 0.8780487775802612f, 0.800000011920929f,
                                0.6315789222717285f, 0.0f}));
}

struct TableCase {
  Scheduler scheduler;
  std::vector<float> sigmas;
};

class Tables : public testing::TestWithParam<TableCase> {};

TEST_P(Tables, AgreeToTheDigitsGiven) {
  const TableCase& c = GetParam();
  const std::vector<float> actual = schedule(c.scheduler, static_cast<std::int64_t>(c.sigmas.size()) - 1);
  ASSERT_EQ(actual.size(), c.sigmas.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], c.sigmas[i], 6e-7f) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Stock, Tables,
    testing::Values(TableCase{Scheduler::kSimple, {1, .972973f, .923077f, .8f, 0}},
                    TableCase{Scheduler::kSimple,
                              {1, .990826f, .979592f, .965517f, .947368f, .923077f, .888889f, .837209f, .75f,
                               .571429f, 0}},
                    TableCase{Scheduler::kBeta, {1, .982512f, .923361f, .720733f, 0}},
                    TableCase{Scheduler::kBeta,
                              {1, .994988f, .982512f, .960745f, .923361f, .855292f, .720733f, .424908f, 0}},
                    TableCase{Scheduler::kLinearQuadratic,
                              {1, .99375f, .9875f, .98125f, .975f, .909375f, .725f, .421875f, 0}},
                    TableCase{Scheduler::kLinearQuadratic, {1, 0}}));

// The median lies half-way between levels 499 and 500: to the even one, as SciPy 1.11, 1.14, 1.16 and 1.17
// have it (a published table has 499 there).
TEST(Beta, TakesScipysLevels) {
  const std::vector<float> table = sigma_table(12.0);
  const std::vector<float> sigmas = schedule(Scheduler::kBeta, 8);
  const std::size_t levels[] = {999, 942, 823, 670, 500, 329, 176, 57};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(sigmas[i], table[levels[i]]) << i;
}

TEST(Beta, DropsRepeatedLevels) {
  const std::vector<float> sigmas = schedule(Scheduler::kBeta, 1000);
  EXPECT_LT(sigmas.size(), 1001u);
  for (std::size_t i = 0; i + 1 < sigmas.size(); ++i) EXPECT_GT(sigmas[i], sigmas[i + 1]) << i;
}

TEST(Denoise, TakesTheEndOfALongerSchedule) {
  for (const Scheduler scheduler : {Scheduler::kSimple, Scheduler::kBeta, Scheduler::kLinearQuadratic}) {
    const std::vector<float> longer = schedule(scheduler, 10);
    const std::vector<float> tail = schedule(scheduler, 4, 0.4);
    EXPECT_EQ(tail, std::vector<float>(longer.end() - 5, longer.end())) << scheduler_name(scheduler);
  }
}

TEST(Denoise, CutsTheLongerStepCountToAWholeNumber) {
  const std::vector<float> longer = schedule(Scheduler::kSimple, 11);  // 8 / 0.7 = 11.43
  EXPECT_EQ(schedule(Scheduler::kSimple, 8, 0.7), std::vector<float>(longer.end() - 9, longer.end()));
}

TEST(Denoise, IsWholeFromFourNines) {
  EXPECT_EQ(schedule(Scheduler::kSimple, 8, 0.99995), schedule(Scheduler::kSimple, 8));
}

TEST(Schedule, ShiftRebuildsTheTable) {
  EXPECT_EQ(schedule(Scheduler::kSimple, 4, 1.0, 6.0)[2], sigma_table(6.0)[499]);
}

TEST(Schedule, RefusesWhatCannotBeRun) {
  EXPECT_THROW(schedule(Scheduler::kSimple, 0), Error);
  EXPECT_THROW(schedule(Scheduler::kSimple, -3), Error);
  EXPECT_THROW(schedule(Scheduler::kSimple, 8, 0.0), Error);
  EXPECT_THROW(schedule(Scheduler::kSimple, 8, 1.5), Error);
  EXPECT_THROW(schedule(Scheduler::kSimple, 8, std::numeric_limits<double>::quiet_NaN()), Error);
  EXPECT_THROW(schedule(Scheduler::kSimple, 8, 1e-9), Error);
  EXPECT_THROW(schedule(Scheduler::kSimple, 8, 1.0, -1.0), Error);
}

TEST(Schedule, NamesGoBothWays) {
  for (const Scheduler scheduler : {Scheduler::kSimple, Scheduler::kBeta, Scheduler::kLinearQuadratic})
    EXPECT_EQ(scheduler_from_name(scheduler_name(scheduler)), scheduler);
  EXPECT_THROW(scheduler_from_name("karras"), Error);
}

}  // namespace
}  // namespace h3s::sample
