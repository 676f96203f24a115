// A session's memory: what its constructors will ask for, found out by running them, and one block a space
// that serves exactly that.
#pragma once

#include "exec/session.h"
#include "exec/weight_loader.h"
#include "mem/arena.h"
#include "spec/layout.h"

namespace h3s::exec {

// Every allocation and release of constructing a Session and of its set_conditioning(), in order, by running
// them against `books`, which hold no memory (mem::make_dry_allocator) and are left as they were. forward()
// has none. Touches no tensor data. `device_is_host` as the backend says.
mem::Recording record_session(mem::Accountant& books, const WeightLoader& loader, const spec::Layout& layout,
                              const SessionOptions& options, bool device_is_host);

// The arenas of a session, empty and ready for its constructors, and the options they were made for.
struct SessionMemory {
  SessionOptions options;
  mem::Arena arena;
};

// Where the system refuses to pin what the options need: one slot for weights instead of several; where it
// refuses that too: the slots asked for, in ordinary memory. Either way one warning, from here or from the
// allocator. Throws as mem::Arena.
SessionMemory open_session_memory(mem::Accountant& accountant, const WeightLoader& loader,
                                  const spec::Layout& layout, const SessionOptions& options,
                                  bool device_is_host);

}  // namespace h3s::exec
