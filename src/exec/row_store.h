// A tensor with one row a token, at home on the device or in pinned host memory, used chunk by chunk on the
// device.
//
// At home on the device, a chunk is a pointer. At home on the host, a chunk passes through one of two staging
// slots: uploads, compute and downloads of neighbouring chunks overlap, ordered by events alone. Within a
// phase every row is touched once; begin_phase() orders a phase's uploads after the downloads of the one
// before.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "exec/memory.h"

namespace h3s::exec {

class RowStore {
 public:
  // `rows` x `row_bytes` at home in `home`; chunks of at most `chunk_rows`.
  RowStore(Context context, mem::Space home, std::int64_t rows, std::int64_t row_bytes,
           std::int64_t chunk_rows, const std::string& tag);

  bool on_device() const { return home_.space() == mem::Space::kDevice; }
  std::int64_t row_bytes() const { return row_bytes_; }
  void* home() const { return home_.data(); }

  void begin_phase();

  // Rows [start, start + rows) on the device, dense, holding their values (read) or to be filled (write). One
  // chunk is open at a time; compute work that uses it is called before done() or done_dirty().
  void* read(std::int64_t start, std::int64_t rows);
  void* write(std::int64_t start, std::int64_t rows);
  // The same for bytes [column, column + bytes) of each row, to be filled; rows lie `pitch_bytes` apart.
  struct Window {
    void* data = nullptr;
    std::int64_t pitch_bytes = 0;
  };
  Window write_columns(std::int64_t start, std::int64_t rows, std::int64_t column, std::int64_t bytes);

  void done();        // the chunk was read only
  void done_dirty();  // the chunk goes home

  // Host waits until every row is at home. The host may then read home() when that is host memory.
  void settle();

 private:
  struct Slot {
    mem::Buffer buffer;
    kernels::Event free;
  };
  // The open part: rows [start, start + rows), bytes [column, column + bytes) of each.
  struct Part {
    std::int64_t start = 0, rows = 0, column = 0, bytes = 0;
  };
  std::byte* home_row(std::int64_t row) const;

  Context context_;
  std::int64_t row_bytes_;
  mem::Buffer home_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
  Part part_;
  kernels::Event last_download_, phase_barrier_;
};

}  // namespace h3s::exec
