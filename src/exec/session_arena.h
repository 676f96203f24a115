// A session's memory: what its constructors will ask for, found out by running them, and one block a space
// that serves exactly that.
#pragma once

#include "checkpoint/checkpoint.h"
#include "exec/session.h"
#include "mem/arena.h"
#include "spec/layout.h"

namespace h3s::exec {

// Every allocation and release of constructing a Session and of its set_conditioning(), in order, by running
// them against `books`, which hold no memory (mem::make_dry_allocator) and are left as they were. forward()
// has none. Touches no tensor data. `device_is_host` as the backend says.
mem::Recording record_session(mem::Accountant& books, const checkpoint::Checkpoint& checkpoint,
                              const spec::Layout& layout, const SessionOptions& options, bool device_is_host);

// The arenas of a session on a backend, empty and ready for its constructors. Throws as mem::Arena.
mem::Arena open_session_arena(mem::Accountant& accountant, const checkpoint::Checkpoint& checkpoint,
                              const spec::Layout& layout, const SessionOptions& options, bool device_is_host);

}  // namespace h3s::exec
