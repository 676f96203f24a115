// The few numbers of a ledger, against ones made by hand.
#include "ledger/summary.h"

#include "ledger/ledger_fixture.h"

namespace h3s::test {
namespace {

ledger::Ledger known_ledger() {
  return {.path = "",
          .header = known_header(),
          .phases = known_step(),
          .closing = ledger::Closing{"done", 1, 105, {}}};
}

TEST(LedgerSummary, OfAWholeStep) {
  const ledger::Summary s = ledger::summarise(known_ledger());
  EXPECT_EQ(s.outcome, "done");
  EXPECT_EQ(s.steps, 1);
  EXPECT_EQ(s.blocks, 2);
  EXPECT_DOUBLE_EQ(s.step_seconds, 0.105);
  EXPECT_DOUBLE_EQ(s.block_seconds, 0.060);  // of 30 and 60 ms, the upper median
  ASSERT_TRUE(s.slowest);
  EXPECT_EQ(s.slowest->block, 1);
  EXPECT_DOUBLE_EQ(s.phase_seconds[static_cast<std::size_t>(exec::Phase::kAttn)], 0.045);
  EXPECT_EQ(s.peak_bytes, (ledger::SpaceBytes{950, 195, 25}));
  EXPECT_EQ(s.rss_anon_bytes, 5000);
  EXPECT_EQ(s.device_used_bytes, 4000);
}

TEST(LedgerSummary, AStepOrBlockThatWasCutOffHasNoTime) {
  ledger::Ledger cut = known_ledger();
  cut.closing.reset();
  cut.phases.resize(6);  // up to block 1's attention
  const ledger::Summary s = ledger::summarise(cut);
  EXPECT_NE(s.outcome.find("killed"), std::string::npos);
  EXPECT_EQ(s.steps, 0);
  EXPECT_EQ(s.step_seconds, 0);
  EXPECT_EQ(s.blocks, 1);
  EXPECT_DOUBLE_EQ(s.block_seconds, 0.030);
}

TEST(LedgerSummary, OfNothingIsNothing) {
  const ledger::Summary s = ledger::summarise({.path = "", .header = known_header()});
  EXPECT_EQ(s.steps, 0);
  EXPECT_EQ(s.block_seconds, 0);
  EXPECT_FALSE(s.slowest);
}

TEST(LedgerSummary, EverySpaceIsHeldToPlanAndBudget) {
  const ledger::Ledger good = known_ledger();
  EXPECT_TRUE(within_plan(good, ledger::summarise(good)));
  for (std::size_t space = 0; space < 3; ++space) {
    ledger::Ledger bad = known_ledger();
    bad.phases[4].memory.peak_bytes[space] = bad.header.planned_bytes[space] + 1;
    EXPECT_FALSE(within_plan(bad, ledger::summarise(bad))) << space;
  }
  ledger::Ledger bad = known_ledger();
  bad.header.device_budget_bytes = 999;
  EXPECT_FALSE(within_plan(bad, ledger::summarise(bad)));
  bad = known_ledger();
  bad.header.ram_budget_bytes = 229;
  EXPECT_FALSE(within_plan(bad, ledger::summarise(bad)));
}

}  // namespace
}  // namespace h3s::test
