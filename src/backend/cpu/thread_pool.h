// A fixed set of threads that share the indices of one loop at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace h3s::cpu {

class ThreadPool {
 public:
  // The calling thread counts: `num_threads` - 1 threads are started. At least 1. Throws Error(kIo) when the
  // system refuses one.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls fn(index, worker) for each index in [0, count), handed out in ascending order; worker <
  // num_threads() names the thread. Returns when all are done. If calls throw, the remaining indices are
  // dropped and the first exception is rethrown. One caller at a time, and not from inside fn.
  template <typename Fn>
  void parallel_for(std::int64_t count, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    const auto call = [](void* f, std::int64_t idx, int worker) {
      (*static_cast<Callable*>(f))(idx, worker);
    };
    run({call, const_cast<void*>(static_cast<const void*>(&fn)), count});
  }

 private:
  void stop() noexcept;  // ends and joins the threads started
  struct Loop {
    void (*call)(void* fn, std::int64_t idx, int worker) = nullptr;
    void* fn = nullptr;
    std::int64_t count = 0;
  };

  void run(const Loop& loop);
  void work(const Loop& loop, int worker) noexcept;
  void serve(int worker);

  std::mutex mutex_;
  std::condition_variable start_, done_;
  Loop loop_;                     // guarded by mutex_
  std::uint64_t generation_ = 0;  // guarded by mutex_; counts loops, so that a thread joins each once
  int num_busy_ = 0;              // guarded by mutex_
  bool stop_ = false;             // guarded by mutex_
  std::exception_ptr error_;      // guarded by mutex_
  std::atomic<std::int64_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace h3s::cpu
