#include "backend/cpu/thread_pool.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace h3s::cpu {

ThreadPool::ThreadPool(int num_threads) {
  H3S_ASSERT(num_threads >= 1);
  threads_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int worker = 1; worker < num_threads; ++worker)
      threads_.emplace_back([this, worker] { serve(worker); });
  } catch (const std::system_error& e) {
    stop();
    fail(Status::kIo, "[cpu] the system refused thread {} of {}: {}; use fewer with --threads",
         threads_.size() + 2, num_threads, e.code().message());
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const Loop& loop) {
  next_ = 0;
  const bool share = loop.count > 1 && !threads_.empty();
  if (share) {
    const std::lock_guard lock(mutex_);
    loop_ = loop;
    ++generation_;
    num_busy_ = static_cast<int>(threads_.size());
  }
  if (share) start_.notify_all();
  work(loop, 0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return num_busy_ == 0; });
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void ThreadPool::work(const Loop& loop, int worker) noexcept {
  try {
    for (std::int64_t idx = next_++; idx < loop.count; idx = next_++) loop.call(loop.fn, idx, worker);
  } catch (...) {
    next_ = loop.count;
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::serve(int worker) {
  std::uint64_t seen = 0;
  for (;;) {
    Loop loop;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      loop = loop_;
    }
    work(loop, worker);
    const std::lock_guard lock(mutex_);
    if (--num_busy_ == 0) done_.notify_one();
  }
}

}  // namespace h3s::cpu
