#include "exec/row_store.h"

#include <algorithm>

namespace h3s::exec {

using kernels::Queue;

RowStore::RowStore(Context context, mem::Space home, std::int64_t rows, std::int64_t row_bytes,
                   std::int64_t chunk_rows, const std::string& tag)
    : context_(context),
      row_bytes_(row_bytes),
      home_(context.accountant.allocate(home, rows * row_bytes, tag)) {
  if (home == mem::Space::kDevice) return;
  for (Slot& slot : slots_)
    slot.buffer = context.accountant.allocate(mem::Space::kDevice, std::min(rows, chunk_rows) * row_bytes,
                                              "staging of " + tag);
}

std::byte* RowStore::home_row(std::int64_t row) const {
  return home_.as<std::byte>() + row * row_bytes_;
}

void RowStore::begin_phase() {
  phase_barrier_ = last_download_;
}

void* RowStore::read(std::int64_t start, std::int64_t rows) {
  part_ = {start, rows, 0, row_bytes_};
  if (on_device()) return home_row(start);
  Slot& slot = slots_[next_];
  const std::int64_t bytes = rows * row_bytes_;
  H3S_ASSERT(bytes <= slot.buffer.bytes());
  context_.backend.wait(Queue::kUpload, slot.free);
  context_.backend.wait(Queue::kUpload, phase_barrier_);
  context_.backend.copy({slot.buffer.data(), bytes, home_row(start), bytes, bytes, 1}, Queue::kUpload);
  context_.backend.wait(Queue::kCompute, context_.backend.record(Queue::kUpload));
  return slot.buffer.data();
}

void* RowStore::write(std::int64_t start, std::int64_t rows) {
  return write_columns(start, rows, 0, row_bytes_).data;
}

RowStore::Window RowStore::write_columns(std::int64_t start, std::int64_t rows, std::int64_t column,
                                         std::int64_t bytes) {
  part_ = {start, rows, column, bytes};
  if (on_device()) return {home_row(start) + column, row_bytes_};
  Slot& slot = slots_[next_];
  H3S_ASSERT(rows * bytes <= slot.buffer.bytes());
  context_.backend.wait(Queue::kCompute, slot.free);
  return {slot.buffer.data(), bytes};
}

void RowStore::done() {
  if (on_device()) return;
  slots_[next_].free = context_.backend.record(Queue::kCompute);
  next_ = (next_ + 1) % slots_.size();
}

void RowStore::done_dirty() {
  if (on_device()) return;
  Slot& slot = slots_[next_];
  context_.backend.wait(Queue::kDownload, context_.backend.record(Queue::kCompute));
  context_.backend.copy({home_row(part_.start) + part_.column, row_bytes_, slot.buffer.data(), part_.bytes,
                         part_.bytes, part_.rows},
                        Queue::kDownload);
  last_download_ = slot.free = context_.backend.record(Queue::kDownload);
  next_ = (next_ + 1) % slots_.size();
}

void RowStore::settle() {
  context_.backend.sync(last_download_);
  context_.backend.sync(context_.backend.record(Queue::kCompute));
}

}  // namespace h3s::exec
