#include "exec/footprint.h"

#include <utility>

#include "exec/session_arena.h"

namespace h3s::exec {

FootprintMeter::FootprintMeter(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                               const SessionOptions& options, bool device_is_host, Holdings holdings)
    : FootprintMeter(WeightLoader(checkpoint, options.compute, device_is_host), layout, options,
                     device_is_host, std::move(holdings)) {}

FootprintMeter::FootprintMeter(const WeightLoader& loader, const spec::Layout& layout,
                               const SessionOptions& options, bool device_is_host, Holdings holdings)
    : loader_(loader),
      layout_(layout),
      options_(options),
      device_is_host_(device_is_host),
      holdings_(std::move(holdings)) {}

Footprint FootprintMeter::measure(const Dials& dials) const {
  mem::Accountant books(mem::make_dry_allocator());
  std::vector<mem::Buffer> held;
  for (const Holding& holding : holdings_)
    if (holding.bytes > 0) held.push_back(books.allocate(holding.space, holding.bytes, holding.tag));
  SessionOptions options = options_;
  options.dials = dials;
  const mem::Placement arenas =
      mem::place(record_session(books, loader_, layout_, options, device_is_host_).buffers());
  Footprint footprint;
  for (const mem::Space space : mem::kSpaces) {
    mem::SpaceReport& report = footprint.spaces[mem::index(space)];
    report = books.report(space);
    // The session takes its arena whole: what is held beside it, and the arena.
    report.peak_bytes = books.totals(space).current_bytes + arenas.arena_bytes[mem::index(space)];
  }
  return footprint;
}

Footprint measure_footprint(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                            const SessionOptions& options, bool device_is_host, const Holdings& holdings) {
  return FootprintMeter(checkpoint, layout, options, device_is_host, holdings).measure(options.dials);
}

bool fits(const Footprint& footprint, const Budgets& budgets) {
  return footprint.device_bytes() <= budgets.device_bytes && footprint.ram_bytes() <= budgets.ram_bytes;
}

}  // namespace h3s::exec
