#include "plan/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "base/bytes.h"
#include "exec/sequence.h"
#include "exec/weight_ring.h"
#include "plan/candidates.h"

namespace h3s::plan {

using exec::Dials;
using exec::Footprint;

namespace {

// What is needed and the budget for it, told apart.
std::array<std::string, 2> need_and_budget(std::int64_t need, std::int64_t budget) {
  if (budget == mem::kUnlimited) return {format_bytes(need), "unlimited"};
  return format_apart(need, budget);
}

// Bytes to give back as an argument, and to read.
std::string both(std::int64_t bytes) {
  return fmt::format("{} ({})", bytes, format_bytes(bytes));
}

std::string largest_holders(const Footprint& footprint) {
  constexpr std::size_t kShown = 3;
  std::vector<mem::Holder> holders;
  for (const mem::SpaceReport& space : footprint.spaces)
    holders.insert(holders.end(), space.holders.begin(), space.holders.end());
  std::stable_sort(holders.begin(), holders.end(),
                   [](const mem::Holder& a, const mem::Holder& b) { return a.peak_bytes > b.peak_bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, holders.size()); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", holders[i].tag, format_bytes(holders[i].peak_bytes));
  return text;
}

// What is held beside the session and passes the device budget by itself: a driver's context on a small
// card; null: nothing does.
const exec::Holding* hopeless(const exec::Holdings& holdings, std::int64_t device_budget) {
  for (const exec::Holding& holding : holdings)
    if (holding.space == mem::Space::kDevice && holding.bytes > device_budget) return &holding;
  return nullptr;
}

// Copies are compared in steps of 2^(1/4): a fifth less is worth a larger arena.
int traffic_rank(double bytes) {
  constexpr double kRanksPerOctave = 4;
  return static_cast<int>(std::ceil(std::log2(1 + bytes) * kRanksPerOctave));
}

// A plan with its place in the order of preference: faster, else fewer copies, else leaner on the device,
// else leaner in RAM, else enumerated first.
struct Choice {
  Dials dials;
  Footprint footprint;
  std::int64_t rank = 0;
  int traffic_rank = 0;  // of bytes between host and device a step
  std::size_t idx = 0;

  auto key() const {
    return std::tuple(rank, traffic_rank, footprint.device_bytes(), footprint.ram_bytes(), idx);
  }
};

class Planner {
 public:
  explicit Planner(const Request& request)
      : request_(request),
        loader_(request.checkpoint, request.session.compute, request.device_is_host),
        meter_(loader_, request.layout, request.session, request.device_is_host, request.holdings),
        model_(request.calibration, loader_, request.layout, request.device_is_host, request.weights_cached),
        spec_(request.checkpoint.spec()),
        tokens_(request.layout.tokens()) {}

  std::optional<Plan> best() const;
  std::optional<Plan> given() const;
  Refusal refusal(const std::string& what, const Footprint* needed) const;

 private:
  // Dials without those of the weights, and the rank they reach with all weights in place.
  struct Candidate {
    Dials dials;
    std::int64_t best_rank = 0;
    std::size_t idx = 0;
  };

  // Two slots: one block computes while the next arrives; more are no faster. Where the device is the host
  // the dial has no effect and is left alone.
  std::vector<std::int64_t> slot_choices() const {
    if (request_.device_is_host) return {Dials{}.weight_slots};
    return {2, 1};
  }
  Dials tightest_of(const Family& family) const {
    Dials dials = tightest(family, tokens_);
    dials.weight_slots = slot_choices().back();
    return dials;
  }
  struct Tight {
    Dials dials;
    Footprint footprint;
  };
  Tight nearest(std::optional<exec::Schedule> schedule) const;
  bool wanted(const Family& family) const { return request_.without != family.schedule; }
  std::int64_t rank(const Dials& dials) const { return time_rank(model_.estimate(dials).seconds); }
  std::int64_t rank_with(Dials dials, std::int64_t resident_blocks) const {
    dials.resident_blocks = resident_blocks;
    return rank(dials);
  }
  bool fits(const Footprint& footprint) const { return exec::fits(footprint, request_.budgets); }
  std::vector<Candidate> candidates() const;
  std::int64_t fewest_blocks(const Dials& dials, std::int64_t most) const;
  std::int64_t most_blocks(const Dials& dials, std::int64_t wanted) const;
  std::optional<Choice> place_weights(const Candidate& candidate, std::int64_t slots) const;
  Plan plan(const Dials& dials, const Footprint& footprint) const {
    return {dials, footprint, model_.estimate(exec::effective_dials(dials, spec_, tokens_))};
  }

  const Request& request_;
  exec::WeightLoader loader_;
  exec::FootprintMeter meter_;
  TimeModel model_;
  const spec::ModelSpec& spec_;
  std::int64_t tokens_;
};

// Of every family that fits at all, fastest first.
std::vector<Planner::Candidate> Planner::candidates() const {
  std::vector<Candidate> all;
  for (const Family& family : families(spec_)) {
    if (!wanted(family) || !fits(meter_.measure(tightest_of(family)))) continue;
    for (const Dials& dials : members(family, tokens_))
      all.push_back({dials, rank_with(dials, spec_.layers), all.size()});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.best_rank < b.best_rank; });
  return all;
}

// The fewest resident blocks that are as fast as `most` of them: time never grows with their number.
std::int64_t Planner::fewest_blocks(const Dials& dials, std::int64_t most) const {
  const std::int64_t target = rank_with(dials, most);
  std::int64_t low = 0, high = most;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (rank_with(dials, middle) <= target)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// The most resident blocks up to `wanted` that fit, given that none does: bytes never shrink with their
// number.
std::int64_t Planner::most_blocks(const Dials& dials, std::int64_t wanted) const {
  std::int64_t low = 0, high = wanted;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    Dials more = dials;
    more.resident_blocks = middle;
    if (fits(meter_.measure(more)))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

std::optional<Choice> Planner::place_weights(const Candidate& candidate, std::int64_t slots) const {
  Dials dials = candidate.dials;
  dials.weight_slots = slots;
  Footprint footprint = meter_.measure(dials);
  if (!fits(footprint)) return {};
  const std::int64_t useful = fewest_blocks(dials, spec_.layers);
  if (useful > 0) {
    dials.resident_blocks = fewest_blocks(dials, most_blocks(dials, useful));
    footprint = meter_.measure(dials);
  }
  const Estimate estimate = model_.estimate(dials);
  return Choice{dials, footprint, time_rank(estimate.seconds), traffic_rank(estimate.host_traffic_bytes),
                candidate.idx};
}

std::optional<Plan> Planner::best() const {
  std::optional<Choice> best;
  for (const Candidate& candidate : candidates()) {
    if (best && candidate.best_rank > best->rank) break;
    for (const std::int64_t slots : slot_choices()) {
      const std::optional<Choice> choice = place_weights(candidate, slots);
      if (choice && (!best || choice->key() < best->key())) best = choice;
    }
  }
  if (!best) return {};
  return plan(best->dials, best->footprint);
}

std::optional<Plan> Planner::given() const {
  const Footprint footprint = meter_.measure(request_.session.dials);
  if (!fits(footprint)) return {};
  return plan(request_.session.dials, footprint);
}

// The tightest plan of a wanted family (of `schedule`, where one is given) nearest to the budgets: the one
// smallest on the device that the RAM budget allows, else smallest in RAM that the device budget allows, else
// smallest on the device.
Planner::Tight Planner::nearest(std::optional<exec::Schedule> schedule) const {
  std::vector<Tight> all;
  for (const Family& family : families(spec_))
    if (wanted(family) && (!schedule || family.schedule == *schedule))
      all.push_back({tightest_of(family), meter_.measure(tightest_of(family))});
  const auto smallest = [&](auto allowed, auto bytes) {
    const Tight* best = nullptr;
    for (const Tight& t : all)
      if (allowed(t.footprint) && (best == nullptr || bytes(t.footprint) < bytes(best->footprint))) best = &t;
    return best;
  };
  const exec::Budgets& budgets = request_.budgets;
  const auto device = [](const Footprint& f) { return std::pair(f.device_bytes(), f.ram_bytes()); };
  const auto ram = [](const Footprint& f) { return std::pair(f.ram_bytes(), f.device_bytes()); };
  const Tight* works =
      smallest([&](const Footprint& f) { return f.ram_bytes() <= budgets.ram_bytes; }, device);
  if (works == nullptr)
    works = smallest([&](const Footprint& f) { return f.device_bytes() <= budgets.device_bytes; }, ram);
  if (works == nullptr) works = smallest([](const Footprint&) { return true; }, device);
  return *works;
}

Refusal Planner::refusal(const std::string& what, const Footprint* needed) const {
  const auto text = [](const Tight& t) {
    return fmt::format("--vram {} --ram {}, with {}", both(t.footprint.device_bytes()),
                       both(t.footprint.ram_bytes()), t.dials.describe());
  };
  const exec::Budgets& budgets = request_.budgets;
  const Tight free = nearest({});
  const Footprint& need = needed == nullptr ? free.footprint : *needed;
  const auto device = need_and_budget(need.device_bytes(), budgets.device_bytes);
  const auto ram = need_and_budget(need.ram_bytes(), budgets.ram_bytes);
  std::string reason =
      fmt::format("{} needs {} of device and {} of host memory, the budgets are {} and {}; largest: {}", what,
                  device[0], ram[0], device[1], ram[1], largest_holders(need));
  if (const exec::Holding* holding = hopeless(request_.holdings, budgets.device_bytes)) {
    const auto alone = format_apart(holding->bytes, budgets.device_bytes);
    reason = fmt::format("the {} alone takes {} of device memory, the budget is {}", holding->tag, alone[0],
                         alone[1]);
  }
  reason += "; the smallest budgets that work";
  if (request_.dials_given) {
    const exec::Schedule schedule = request_.session.dials.schedule;
    reason += fmt::format(" with --schedule {}: {}; without --schedule", exec::schedule_name(schedule),
                          text(nearest(schedule)));
  }
  return {fmt::format("[plan] {}: {}", reason, text(free)),
          {free.footprint.device_bytes(), free.footprint.ram_bytes()},
          free.dials};
}

}  // namespace

Result make_plan(const Request& request) {
  const Planner planner(request);
  if (request.dials_given) {
    if (std::optional<Plan> plan = planner.given()) return *std::move(plan);
    const exec::FootprintMeter meter(request.checkpoint, request.layout, request.session,
                                     request.device_is_host, request.holdings);
    const Footprint needed = meter.measure(request.session.dials);
    return planner.refusal(fmt::format("the plan \"{}\"", request.session.dials.describe()), &needed);
  }
  if (std::optional<Plan> plan = planner.best()) return *std::move(plan);
  return planner.refusal("the tightest plan", nullptr);
}

Plan require_plan(const Request& request) {
  Result result = make_plan(request);
  if (const auto* refusal = std::get_if<Refusal>(&result)) throw Error(Status::kOverBudget, refusal->reason);
  return std::get<Plan>(std::move(result));
}

Refusal nearest_budgets(const Request& request) {
  return Planner(request).refusal("the tightest plan", nullptr);
}

}  // namespace h3s::plan
