#include "mem/placement.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace h3s::mem {
namespace {

// Rounds of improvement. Each moves one buffer to the front; those that help do so early.
constexpr int kMostRounds = 32;

using Order = std::vector<std::size_t>;

std::int64_t end_of(const Placed& buffer) {
  return buffer.offset + occupied_bytes(buffer.bytes);
}

std::int64_t live_peak(const std::vector<Placed>& buffers) {
  // Live bytes only grow at an allocation: the peak is at one of them.
  std::int64_t peak = 0;
  for (const Placed& at : buffers) {
    std::int64_t live = 0;
    for (const Placed& b : buffers)
      if (b.first_event <= at.first_event && at.first_event < b.end_event) live += occupied_bytes(b.bytes);
    peak = std::max(peak, live);
  }
  return peak;
}

// The lowest offset at which `buffer` touches none of `neighbours`, which live when it does.
std::int64_t first_fit(const Placed& buffer, std::vector<const Placed*> neighbours) {
  std::sort(neighbours.begin(), neighbours.end(),
            [](const Placed* a, const Placed* b) { return a->offset < b->offset; });
  std::int64_t offset = 0;
  for (const Placed* n : neighbours) {
    if (offset + occupied_bytes(buffer.bytes) <= n->offset) break;
    offset = std::max(offset, end_of(*n));
  }
  return offset;
}

// Places all in the order given; returns the arena's size.
std::int64_t place_in(const Order& order, std::vector<Placed>& buffers) {
  std::int64_t size = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    Placed& buffer = buffers[order[i]];
    std::vector<const Placed*> neighbours;
    for (std::size_t j = 0; j < i; ++j)
      if (buffers[order[j]].lives_with(buffer)) neighbours.push_back(&buffers[order[j]]);
    buffer.offset = first_fit(buffer, std::move(neighbours));
    size = std::max(size, end_of(buffer));
  }
  return size;
}

// Stable, so that equal keys keep the order of allocation.
template <typename Before>
Order sorted_order(const std::vector<Placed>& buffers, Before before) {
  Order order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return before(buffers[a], buffers[b]); });
  return order;
}

std::vector<Order> starting_orders(const std::vector<Placed>& buffers) {
  const auto larger = [](const Placed& a, const Placed& b) { return a.bytes > b.bytes; };
  const auto longer = [](const Placed& a, const Placed& b) {
    return a.end_event - a.first_event > b.end_event - b.first_event;
  };
  const auto earlier = [](const Placed&, const Placed&) { return false; };
  return {sorted_order(buffers, longer), sorted_order(buffers, larger), sorted_order(buffers, earlier)};
}

// The buffer that ends last goes first in the next attempt.
void promote_highest(const std::vector<Placed>& buffers, Order& order) {
  const auto highest = std::max_element(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return end_of(buffers[a]) < end_of(buffers[b]);
  });
  std::rotate(order.begin(), highest, highest + 1);
}

// One space's buffers. Returns the arena's size.
std::int64_t place_space(std::vector<Placed>& buffers, std::int64_t least) {
  std::vector<Placed> attempt = buffers;
  std::int64_t best = kUnlimited;
  for (Order order : starting_orders(buffers))
    for (int round = 0; round < kMostRounds && best > least; ++round) {
      const std::int64_t size = place_in(order, attempt);
      if (size < best) {
        best = size;
        buffers = attempt;
      }
      promote_highest(attempt, order);
    }
  return best;
}

}  // namespace

void Recording::operator()(const MemoryEvent& event) {
  const std::int64_t number = num_events_++;
  if (event.kind == MemoryEvent::Kind::kAllocate) {
    buffers_.push_back({event.space, event.bytes, event.tag, number, kUnlimited, 0});
    serials_.push_back(event.serial);
    return;
  }
  const auto serial = std::lower_bound(serials_.begin(), serials_.end(), event.serial);
  H3S_ASSERT(serial != serials_.end() && *serial == event.serial);  // allocated while recording
  buffers_[static_cast<std::size_t>(serial - serials_.begin())].end_event = number;
}

Placement place(std::vector<Placed> buffers) {
  Placement placement;
  for (const Space space : kSpaces) {
    std::vector<Placed> here;
    std::copy_if(buffers.begin(), buffers.end(), std::back_inserter(here),
                 [space](const Placed& b) { return b.space == space; });
    if (here.empty()) continue;
    placement.live_peak_bytes[index(space)] = live_peak(here);
    placement.arena_bytes[index(space)] = place_space(here, placement.live_peak_bytes[index(space)]);
    auto next = here.begin();
    for (Placed& b : buffers)
      if (b.space == space) b.offset = (next++)->offset;
  }
  placement.buffers = std::move(buffers);
  return placement;
}

}  // namespace h3s::mem
