#include "exec/footprint.h"

#include <utility>

#include "exec/dry_backend.h"
#include "exec/session_state.h"

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
  DryBackend backend(device_is_host_);
  std::vector<mem::Buffer> held;
  for (const Holding& holding : holdings_)
    if (holding.bytes > 0) held.push_back(books.allocate(holding.space, holding.bytes, holding.tag));
  SessionOptions options = options_;
  options.dials = dials;
  const SessionState state(Context{backend, books}, loader_, layout_, options);
  state.make_conditioning_stage();
  Footprint footprint;
  for (int i = 0; i < mem::kNumSpaces; ++i)
    footprint.spaces[static_cast<std::size_t>(i)] = books.report(static_cast<mem::Space>(i));
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
