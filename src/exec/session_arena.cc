#include "exec/session_arena.h"

#include <functional>

#include "exec/dry_backend.h"
#include "exec/session_state.h"

namespace h3s::exec {

mem::Recording record_session(mem::Accountant& books, const checkpoint::Checkpoint& checkpoint,
                              const spec::Layout& layout, const SessionOptions& options,
                              bool device_is_host) {
  mem::Recording recording;
  books.observe(std::ref(recording));
  DryBackend backend(device_is_host);
  const SessionState state(Context{backend, books}, checkpoint, layout, options);
  state.make_conditioning_stage();
  books.observe({});  // what the session holds, it holds to its end
  return recording;
}

mem::Arena open_session_arena(mem::Accountant& accountant, const checkpoint::Checkpoint& checkpoint,
                              const spec::Layout& layout, const SessionOptions& options,
                              bool device_is_host) {
  mem::Accountant books(mem::make_dry_allocator());
  const mem::Recording recording = record_session(books, checkpoint, layout, options, device_is_host);
  return {accountant, mem::place(recording.buffers()), "the session"};
}

}  // namespace h3s::exec
