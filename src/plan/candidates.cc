#include "plan/candidates.h"

#include <algorithm>

namespace h3s::plan {

using exec::Dials;
using exec::Schedule;

namespace {

// Below 64 rows reading a weight costs more than using it; past 16,384 a call's fixed cost is under a
// hundredth on every device seen, and its scratch 2 GB.
constexpr std::int64_t kSmallestChunk = 64, kLargestChunk = 16384;

std::vector<std::int64_t> chunks(std::int64_t tokens) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t chunk = kSmallestChunk; chunk <= kLargestChunk; chunk *= 2) {
    sizes.push_back(std::min(chunk, tokens));
    if (chunk >= tokens) break;
  }
  return sizes;
}

Dials with_chunks(const Family& family, std::int64_t q, std::int64_t kv, std::int64_t mlp) {
  return {.schedule = family.schedule,
          .head_group = family.head_group,
          .q_chunk = q,
          .kv_chunk = kv,
          .mlp_chunk = mlp,
          .head_chunk = mlp,  // the output heads need a quarter of the MLP's scratch a row
          .attention_out_on_device = family.attention_out_on_device,
          .project_ahead = family.project_ahead,
          .keep_projection_input = family.keep_projection_input};
}

}  // namespace

std::vector<Family> families(const spec::ModelSpec& spec) {
  std::vector<Family> all{{Schedule::kResident, spec.heads}};
  std::int64_t last = 0;
  for (std::int64_t groups = 1; groups <= spec.heads; ++groups) {
    const std::int64_t heads = (spec.heads + groups - 1) / groups;  // the fewest that make so many groups
    if (heads == last) continue;
    last = heads;
    for (const bool keep : {false, true}) {
      if (keep && groups == 1) continue;  // there is no group to keep it for
      for (const bool on_device : {true, false})
        all.push_back({Schedule::kHeadGroups, heads, on_device, false, keep});
      for (const bool ahead : {false, true})
        if (!ahead || groups > 1) all.push_back({Schedule::kFlat, heads, false, ahead, keep});
    }
  }
  return all;
}

std::vector<Dials> members(const Family& family, std::int64_t tokens) {
  std::vector<Dials> all;
  const std::vector<std::int64_t> sizes = chunks(tokens);
  for (const std::int64_t q : sizes)
    for (const std::int64_t kv : sizes)
      for (const std::int64_t mlp : sizes) {
        // Projections, and with resident the MLP, work inside a chunk of queries: larger chunks change
        // nothing but the scratch.
        if (family.schedule == Schedule::kResident ? mlp > q : kv > q) continue;
        all.push_back(with_chunks(family, q, kv, mlp));
      }
  return all;
}

Dials tightest(const Family& family, std::int64_t tokens) {
  const std::int64_t chunk = chunks(tokens).front();
  return with_chunks(family, chunk, chunk, chunk);
}

}  // namespace h3s::plan
