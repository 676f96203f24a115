#include "exec/footprint.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "exec/session_arena.h"

namespace h3s::exec {
namespace {

// Rows of a chunk, in two tiers: with the first, matrix products run at about full rate; with the second,
// reading and packing a weight costs as much as using it, so every schedule and head group is tried with the
// first before.
constexpr std::array<std::int64_t, 3> kRoomyChunks{2048, 1024, 512};
constexpr std::array<std::int64_t, 3> kTightChunks{256, 128, 64};
constexpr std::int64_t kMostGroupedHeads = 8;  // more at once are no faster

Dials with_chunks(Schedule schedule, std::int64_t head_group, std::int64_t chunk,
                  bool project_ahead = false) {
  return {.schedule = schedule,
          .head_group = head_group,
          .q_chunk = chunk,
          .kv_chunk = chunk,
          .mlp_chunk = chunk,
          .head_chunk = chunk,
          .project_ahead = project_ahead};
}

std::string largest_holders(const Footprint& footprint) {
  std::vector<mem::Holder> holders;
  for (const mem::SpaceReport& space : footprint.spaces)
    holders.insert(holders.end(), space.holders.begin(), space.holders.end());
  std::stable_sort(holders.begin(), holders.end(),
                   [](const mem::Holder& a, const mem::Holder& b) { return a.peak_bytes > b.peak_bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, holders.size()); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", holders[i].tag, format_bytes(holders[i].peak_bytes));
  return text;
}

std::int64_t ram_bytes(const Footprint& footprint) {
  return footprint.peak_bytes(mem::Space::kPinned) + footprint.peak_bytes(mem::Space::kHost);
}

std::string budget_text(std::int64_t bytes) {
  return bytes == mem::kUnlimited ? "unlimited" : format_bytes(bytes);
}

}  // namespace

Footprint measure_footprint(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                            const SessionOptions& options, bool device_is_host, const FixedBytes& fixed) {
  mem::Accountant books(mem::make_dry_allocator());
  std::vector<mem::Buffer> held;
  for (const mem::Space space : mem::kSpaces)
    if (fixed[space] > 0)
      held.push_back(books.allocate(space, fixed[space], "backend workspace and sampler state"));
  const mem::Placement arenas =
      mem::place(record_session(books, checkpoint, layout, options, device_is_host).buffers());
  Footprint footprint;
  for (const mem::Space space : mem::kSpaces) {
    mem::SpaceReport& report = footprint.spaces[mem::index(space)];
    report = books.report(space);
    // The session takes its arena whole: what is held beside it, and the arena.
    report.peak_bytes = books.totals(space).current_bytes + arenas.arena_bytes[mem::index(space)];
  }
  return footprint;
}

bool fits(const Footprint& footprint, const Budgets& budgets) {
  for (int i = 0; i < mem::kNumSpaces; ++i)
    if (footprint.peak_bytes(static_cast<mem::Space>(i)) > budgets.bytes[static_cast<std::size_t>(i)])
      return false;
  return ram_bytes(footprint) <= budgets.ram_bytes;
}

std::vector<Dials> dial_ladder(const spec::ModelSpec& spec, std::int64_t tokens) {
  std::vector<Dials> ladder;
  const auto add_grouped = [&](Schedule schedule, std::int64_t chunk, bool project_ahead = false) {
    for (std::int64_t group = std::min(kMostGroupedHeads, spec.heads); group > 0; group /= 2)
      ladder.push_back(with_chunks(schedule, group, std::min(chunk, tokens), project_ahead));
  };
  for (const auto& tier : {kRoomyChunks, kTightChunks}) {
    for (const std::int64_t chunk : tier)
      ladder.push_back(with_chunks(Schedule::kResident, spec.heads, std::min(chunk, tokens)));
    for (const std::int64_t chunk : tier) add_grouped(Schedule::kHeadGroups, chunk);
    for (const bool ahead : {true, false})
      for (const std::int64_t chunk : tier) add_grouped(Schedule::kFlat, chunk, ahead);
  }
  return ladder;
}

namespace {

struct Candidate {
  Dials dials;
  Footprint footprint;
};

std::vector<Candidate> candidates(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                                  SessionOptions options, bool device_is_host, const FixedBytes& fixed) {
  std::vector<Candidate> all;
  for (const Dials& dials : dial_ladder(checkpoint.spec(), layout.tokens())) {
    options.dials = dials;  // min_tokens stays 0: chunking is what makes it fit
    all.push_back({dials, measure_footprint(checkpoint, layout, options, device_is_host, fixed)});
  }
  return all;
}

// The budgets nearest to the given ones that some plan works in: the smallest device budget the RAM budget
// allows, else the smallest RAM budget the device budget allows, else the plan smallest on the device.
const Candidate& nearest_working(const std::vector<Candidate>& all, const Budgets& budgets) {
  const std::int64_t device_budget = budgets.bytes[static_cast<std::size_t>(mem::Space::kDevice)];
  const auto smallest = [&](auto allowed, auto bytes) {
    const Candidate* best = nullptr;
    for (const Candidate& c : all)
      if (allowed(c.footprint) && (best == nullptr || bytes(c.footprint) < bytes(best->footprint))) best = &c;
    return best;
  };
  const auto device = [](const Footprint& f) { return f.peak_bytes(mem::Space::kDevice); };
  if (const auto* c = smallest([&](const Footprint& f) { return ram_bytes(f) <= budgets.ram_bytes; }, device))
    return *c;
  if (const auto* c = smallest([&](const Footprint& f) { return device(f) <= device_budget; }, ram_bytes))
    return *c;
  return *smallest([](const Footprint&) { return true; }, device);
}

// Bytes to give back as an argument, and to read.
std::string both(std::int64_t bytes) {
  return fmt::format("{} ({})", bytes, format_bytes(bytes));
}

[[noreturn]] void refuse(const std::string& what, const Footprint& needed, const std::vector<Candidate>& all,
                         const Budgets& budgets) {
  const std::int64_t device_budget = budgets.bytes[static_cast<std::size_t>(mem::Space::kDevice)];
  const Candidate& works = nearest_working(all, budgets);
  fail(Status::kOverBudget,
       "[plan] {} needs {} of device and {} of host memory, the budgets are {} and {}; largest: {}; the "
       "smallest "
       "budgets that work: --vram {} --ram {}, with {}",
       what, format_bytes(needed.peak_bytes(mem::Space::kDevice)), format_bytes(ram_bytes(needed)),
       budget_text(device_budget), budget_text(budgets.ram_bytes), largest_holders(needed),
       both(works.footprint.peak_bytes(mem::Space::kDevice)), both(ram_bytes(works.footprint)),
       works.dials.describe());
}

}  // namespace

Dials choose_dials(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                   SessionOptions options, bool device_is_host, const FixedBytes& fixed,
                   const Budgets& budgets) {
  for (const Dials& dials : dial_ladder(checkpoint.spec(), layout.tokens())) {
    options.dials = dials;  // min_tokens stays 0: chunking is what makes it fit
    if (fits(measure_footprint(checkpoint, layout, options, device_is_host, fixed), budgets)) return dials;
  }
  // Only a refusal needs the whole ladder.
  const std::vector<Candidate> all = candidates(checkpoint, layout, options, device_is_host, fixed);
  refuse("the tightest plan", nearest_working(all, budgets).footprint, all, budgets);
}

void require_fit(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                 const SessionOptions& options, bool device_is_host, const FixedBytes& fixed,
                 const Budgets& budgets) {
  const Footprint needed = measure_footprint(checkpoint, layout, options, device_is_host, fixed);
  if (fits(needed, budgets)) return;
  refuse(fmt::format("the plan \"{}\"", options.dials.describe()), needed,
         candidates(checkpoint, layout, options, device_is_host, fixed), budgets);
}

}  // namespace h3s::exec
