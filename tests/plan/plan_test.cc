// What a planner promises: more budget is never slower, the smallest budget is exact, equal requests give
// equal plans. Over random networks, jobs, machines and budgets; nothing is run.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "exec/sequence.h"
#include "plan/advice.h"
#include "plan/candidates.h"
#include "plan/random_requests.h"

namespace h3s::test {
namespace {

using plan::Plan;
using plan::Refusal;
using plan::Request;

std::optional<Plan> plan_of(const Request& request) {
  plan::Result result = plan::make_plan(request);
  if (auto* plan = std::get_if<Plan>(&result)) return *plan;
  return {};
}

Request with(const Request& request, std::int64_t device, std::int64_t ram) {
  Request changed = request;
  changed.budgets = {device, ram};
  return changed;
}

class RandomPlans : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomPlans, MoreBudgetIsNeverSlower) {
  const auto random = random_request(GetParam());
  SCOPED_TRACE(random->text);
  const Plan roomy = *plan_of(random->request);
  const auto top_device = static_cast<double>(roomy.footprint.device_bytes());
  std::int64_t previous_rank = INT64_MAX;
  bool had_plan = false;
  for (double share = 0.02; share < 2.1; share *= 1.25) {
    const Request request =
        with(random->request, static_cast<std::int64_t>(share * top_device), mem::kUnlimited);
    const std::optional<Plan> plan = plan_of(request);
    EXPECT_TRUE(plan || !had_plan) << "a plan was lost at share " << share;
    if (!plan) continue;
    had_plan = true;
    EXPECT_TRUE(exec::fits(plan->footprint, request.budgets));
    EXPECT_LE(plan::time_rank(plan->time.seconds), previous_rank) << "share " << share;
    previous_rank = plan::time_rank(plan->time.seconds);
  }
  EXPECT_EQ(previous_rank, plan::time_rank(roomy.time.seconds));
}

TEST_P(RandomPlans, MoreRamIsNeverSlower) {
  const auto random = random_request(GetParam());
  SCOPED_TRACE(random->text);
  const std::int64_t device = plan_of(random->request)->footprint.device_bytes() / 2;
  std::int64_t previous_rank = INT64_MAX;
  for (std::int64_t ram = 1 << 20; ram < std::int64_t{1} << 40; ram *= 3)
    if (const std::optional<Plan> plan = plan_of(with(random->request, device, ram))) {
      EXPECT_LE(plan->footprint.ram_bytes(), ram);
      EXPECT_LE(plan::time_rank(plan->time.seconds), previous_rank) << "RAM " << ram;
      previous_rank = plan::time_rank(plan->time.seconds);
    }
}

TEST_P(RandomPlans, SmallestBudgetsAreExact) {
  const auto random = random_request(GetParam());
  SCOPED_TRACE(random->text);
  const Refusal refusal = std::get<Refusal>(plan::make_plan(with(random->request, 1, mem::kUnlimited)));
  const auto [device, ram] = refusal.smallest;
  EXPECT_TRUE(plan_of(with(random->request, device, ram)));
  EXPECT_FALSE(plan_of(with(random->request, device - 1, mem::kUnlimited)));
  // The same with RAM short.
  const Refusal short_of_ram = std::get<Refusal>(plan::make_plan(with(random->request, mem::kUnlimited, 1)));
  EXPECT_TRUE(
      plan_of(with(random->request, short_of_ram.smallest.device_bytes, short_of_ram.smallest.ram_bytes)));
  EXPECT_FALSE(plan_of(with(random->request, mem::kUnlimited, short_of_ram.smallest.ram_bytes - 1)));
  EXPECT_NE(refusal.reason.find(fmt::format("--vram {} ", device)), std::string::npos) << refusal.reason;
  EXPECT_NE(refusal.reason.find(fmt::format("--ram {} ", ram)), std::string::npos) << refusal.reason;
}

TEST_P(RandomPlans, EqualRequestsGiveEqualPlans) {
  const auto one = random_request(GetParam()), two = random_request(GetParam());
  std::mt19937_64 random(GetParam());
  for (int i = 0; i < 4; ++i) {
    const std::int64_t device = log_between(random, 1e6, 1e12), ram = log_between(random, 1e6, 1e12);
    const plan::Result a = plan::make_plan(with(one->request, device, ram));
    const plan::Result b = plan::make_plan(with(two->request, device, ram));
    ASSERT_EQ(a.index(), b.index());
    if (const auto* plan = std::get_if<Plan>(&a)) {
      EXPECT_EQ(plan->dials.describe(), std::get<Plan>(b).dials.describe());
      EXPECT_EQ(plan->time.seconds, std::get<Plan>(b).time.seconds);
    } else {
      EXPECT_EQ(std::get<Refusal>(a).reason, std::get<Refusal>(b).reason);
    }
  }
}

// The search leaves most plans unmeasured; looking at every one must find nothing faster.
TEST_P(RandomPlans, NoEnumeratedPlanThatFitsIsFaster) {
  const auto random = random_request(GetParam());
  if (random->layout.tokens() > 2000) GTEST_SKIP() << "too many plans to measure one by one";
  SCOPED_TRACE(random->text);
  Request request = random->request;
  request.budgets.device_bytes = plan_of(request)->footprint.device_bytes() * 2 / 3;
  const std::optional<Plan> chosen = plan_of(request);
  Request each = request;
  each.dials_given = true;
  const std::int64_t layers = random->checkpoint.spec().layers;
  for (const plan::Family& family : plan::families(random->checkpoint.spec()))
    for (exec::Dials dials : plan::members(family, random->layout.tokens()))
      for (const std::int64_t blocks : {std::int64_t{0}, layers / 2, layers}) {
        dials.resident_blocks = blocks;
        each.session.dials = dials;
        const std::optional<Plan> plan = plan_of(each);
        if (!plan) continue;
        ASSERT_TRUE(chosen) << dials.describe();
        ASSERT_LE(plan::time_rank(chosen->time.seconds), plan::time_rank(plan->time.seconds))
            << chosen->dials.describe() << " against " << dials.describe();
      }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPlans, testing::Range<std::uint64_t>(1, 25),
                         [](const auto& param_info) { return fmt::format("seed{}", param_info.param); });

Request real_request(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout, const char* card) {
  return {.checkpoint = checkpoint,
          .layout = layout,
          .session = {},
          .device_is_host = false,
          .holdings = {},
          .budgets = {.device_bytes = plan::usable_bytes(*plan::find_card(card))},
          .calibration = plan::expect(*plan::find_card(card))};
}

TEST(Plan, GivenDialsThatDoNotFitAreNamedInTheRefusal) {
  const auto random = random_request(3);
  Request request = with(random->request, 16 << 20, mem::kUnlimited);
  request.dials_given = true;
  const auto refusal = std::get<Refusal>(plan::make_plan(request));
  EXPECT_NE(refusal.reason.find("the plan \"resident"), std::string::npos) << refusal.reason;
  EXPECT_TRUE(plan_of(with(random->request, refusal.smallest.device_bytes, refusal.smallest.ram_bytes)));
}

TEST(Plan, ABudgetThatTheContextAlonePassesSaysSo) {
  const auto random = random_request(3);
  random->request.holdings = {{mem::Space::kDevice, 600 << 20, "driver's context"}};
  const auto refusal = std::get<Refusal>(plan::make_plan(with(random->request, 512 << 20, mem::kUnlimited)));
  EXPECT_NE(refusal.reason.find("the driver's context alone takes 600.00 MiB of device memory, the budget is "
                                "512.00 MiB; the smallest budgets that work: --vram "),
            std::string::npos)
      << refusal.reason;
  EXPECT_TRUE(plan_of(with(random->request, refusal.smallest.device_bytes, refusal.smallest.ram_bytes)));
}

TEST(Plan, LeavesOutAScheduleThatIsNotWanted) {
  const auto random = random_request(5);
  for (const exec::Schedule schedule :
       {exec::Schedule::kResident, exec::Schedule::kHeadGroups, exec::Schedule::kFlat}) {
    random->request.without = schedule;
    EXPECT_NE(plan_of(random->request)->dials.schedule, schedule);
  }
}

TEST(Plan, AShortClipWithRoomKeepsWeightsAndALongOneWithoutStreamsThem) {
  const auto checkpoint = checkpoint::Checkpoint::without_data({}, checkpoint::WeightFormat::kInt8Tensorwise);
  const spec::Layout small(plan::job_of({.width = 256, .height = 256, .frames = 5, .text_tokens = 20}));
  const spec::Layout large(plan::job_of({.width = 1376, .height = 768, .frames = 702}));
  EXPECT_GT(plan_of(real_request(checkpoint, small, "h200"))->dials.resident_blocks, 40);
  const Request tight = with(real_request(checkpoint, large, "h200"), std::int64_t{8} << 30, mem::kUnlimited);
  EXPECT_EQ(plan_of(tight)->dials.resident_blocks, 0);
}

TEST(Advice, TheLongestClipFitsAndTheNextDoesNot) {
  const auto checkpoint = checkpoint::Checkpoint::without_data({}, checkpoint::WeightFormat::kInt8Tensorwise);
  const plan::Clip clip{.width = 1376, .height = 768, .frames = 702};
  const auto make = [&](const spec::Layout& layout) {
    Request request = real_request(checkpoint, layout, "rtx3060");
    request.budgets.ram_bytes = std::int64_t{24} << 30;
    return request;
  };
  const plan::LongestClip longest = plan::longest_clip(clip, make);
  EXPECT_FALSE(longest.limited);
  EXPECT_EQ((longest.frames - 5) % 17, 0);
  plan::Clip at = clip;
  at.frames = longest.frames;
  const spec::Layout fits(plan::job_of(at));
  at.frames += 17;
  const spec::Layout too_long(plan::job_of(at));
  EXPECT_TRUE(plan_of(make(fits)));
  EXPECT_FALSE(plan_of(make(too_long)));
}

TEST(Advice, NoSmallerCardHasAPlanThanTheSmallest) {
  const auto checkpoint = checkpoint::Checkpoint::without_data({}, checkpoint::WeightFormat::kBF16);
  const spec::Layout layout(plan::job_of({.width = 1376, .height = 768, .frames = 6000}));
  const Request request = real_request(checkpoint, layout, "h200");
  const std::optional<plan::CardPlan> smallest = plan::smallest_card(request);
  ASSERT_TRUE(smallest);
  for (const plan::Card& card : plan::cards())
    if (card.memory_gib < smallest->card->memory_gib) {
      EXPECT_FALSE(plan_of(real_request(checkpoint, layout, card.name))) << card.name;
    }
}

}  // namespace
}  // namespace h3s::test
