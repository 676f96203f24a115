#include "exec/session_arena.h"

#include <functional>
#include <vector>

#include "exec/dry_backend.h"
#include "exec/session_state.h"

namespace h3s::exec {

mem::Recording record_session(mem::Accountant& books, const WeightLoader& loader, const spec::Layout& layout,
                              const SessionOptions& options, bool device_is_host) {
  mem::Recording recording;
  books.observe(std::ref(recording));
  DryBackend backend(device_is_host);
  const SessionState state(Context{backend, books}, loader, layout, options);
  state.make_conditioning_stage();
  books.observe({});  // what the session holds, it holds to its end
  return recording;
}

namespace {

mem::Placement place_session(const WeightLoader& loader, const spec::Layout& layout,
                             const SessionOptions& options, bool device_is_host) {
  mem::Accountant books(mem::make_dry_allocator());
  return mem::place(record_session(books, loader, layout, options, device_is_host).buffers());
}

struct Attempt {
  SessionOptions options;
  mem::Pinning pinning = mem::Pinning::kReal;
};

std::vector<Attempt> attempts(const SessionOptions& options, bool device_is_host) {
  std::vector<Attempt> list{{options}};
  if (!device_is_host && options.dials.weight_slots > 1) {
    list.push_back({options});
    list.back().options.dials.weight_slots = 1;
  }
  list.push_back({options, mem::Pinning::kOrdinaryMemory});
  return list;
}

}  // namespace

SessionMemory open_session_memory(mem::Accountant& accountant, const WeightLoader& loader,
                                  const spec::Layout& layout, const SessionOptions& options,
                                  bool device_is_host) {
  const std::vector<Attempt> list = attempts(options, device_is_host);
  for (const Attempt& attempt : list) try {
      return {attempt.options,
              {accountant, place_session(loader, layout, attempt.options, device_is_host), "the session",
               attempt.pinning}};
    } catch (const mem::Refused& refused) {
      if (refused.space() != mem::Space::kPinned || &attempt == &list.back()) throw;
    }
  fail(Status::kInternal, "[session] the last attempt neither succeeded nor failed");
}

}  // namespace h3s::exec
