#include "mem/placement.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace h3s::mem {
namespace {

// Rounds of improvement. Each moves one buffer to the front; those that help do so early.
constexpr int kMostRounds = 32;

// A buffer without its name: planners place thousands of sessions, and names cost most of that.
struct Item {
  std::int64_t bytes = 0;  // occupied
  std::int64_t first_event = 0, end_event = 0;
  std::int64_t offset = 0;

  std::int64_t end() const { return offset + bytes; }
  bool lives_with(const Item& other) const {
    return first_event < other.end_event && other.first_event < end_event;
  }
};
using Items = std::vector<Item>;
using Order = std::vector<std::size_t>;

std::int64_t live_peak(const Items& items) {
  // Live bytes only grow at an allocation: the peak is at one of them.
  std::int64_t peak = 0;
  for (const Item& at : items) {
    std::int64_t live = 0;
    for (const Item& i : items)
      if (i.first_event <= at.first_event && at.first_event < i.end_event) live += i.bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

// The lowest offset at which `item` touches none of `neighbours`, which ascend in offset and live when it
// does.
std::int64_t first_fit(const Item& item, const std::vector<const Item*>& neighbours) {
  std::int64_t offset = 0;
  for (const Item* n : neighbours) {
    if (offset + item.bytes <= n->offset) break;
    offset = std::max(offset, n->end());
  }
  return offset;
}

// Places all in the order given; returns the arena's size.
std::int64_t place_in(const Order& order, Items& items) {
  std::int64_t size = 0;
  std::vector<const Item*> placed, neighbours;  // ascending in offset
  for (const std::size_t idx : order) {
    Item& item = items[idx];
    neighbours.clear();
    for (const Item* other : placed)
      if (other->lives_with(item)) neighbours.push_back(other);
    item.offset = first_fit(item, neighbours);
    size = std::max(size, item.end());
    const auto lower = [](const Item* a, const Item* b) { return a->offset < b->offset; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &item, lower), &item);
  }
  return size;
}

// Keys by which buffers are ordered for a first attempt, the larger first; equal keys keep the order of
// allocation.
using Key = std::int64_t (*)(const Item&);
constexpr Key kKeys[] = {
    [](const Item& i) { return i.end_event - i.first_event; },
    [](const Item& i) { return i.bytes; },
    [](const Item&) { return std::int64_t{0}; },
};

Order order_by(Key key, const Items& items) {
  Order order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return key(items[a]) > key(items[b]); });
  return order;
}

// The buffer that ends last goes first in the next attempt.
void promote_highest(const Items& items, Order& order) {
  const auto highest = std::max_element(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return items[a].end() < items[b].end();
  });
  std::rotate(order.begin(), highest, highest + 1);
}

// One space's buffers. Returns the arena's size.
std::int64_t place_space(Items& items, std::int64_t least) {
  Items attempt = items;
  std::int64_t best = kUnlimited;
  for (const Key key : kKeys) {
    if (best == least) break;
    Order order = order_by(key, items);
    for (int round = 0; round < kMostRounds && best > least; ++round) {
      const std::int64_t size = place_in(order, attempt);
      if (size < best) {
        best = size;
        items = attempt;
      }
      promote_highest(attempt, order);
    }
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
    Items items;
    for (const Placed& b : buffers)
      if (b.space == space) items.push_back({occupied_bytes(b.bytes), b.first_event, b.end_event, 0});
    if (items.empty()) continue;
    placement.live_peak_bytes[index(space)] = live_peak(items);
    placement.arena_bytes[index(space)] = place_space(items, placement.live_peak_bytes[index(space)]);
    auto next = items.begin();
    for (Placed& b : buffers)
      if (b.space == space) b.offset = (next++)->offset;
  }
  placement.buffers = std::move(buffers);
  return placement;
}

}  // namespace h3s::mem
