// SPDX-License-Identifier: Apache-2.0
/*!
 * \file thread_pool.h
 * \brief A few threads that share loops.
 */
#ifndef EMULATOR_THREAD_POOL_H_
#define EMULATOR_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace npu::emulator {

/*!
 * \brief Threads that wait for loops to share. A pool of 1 starts no thread.
 *
 * Any thread may call ParallelFor at any time, except from a body of ParallelFor. The pool serves
 * one caller at a time; others run their loops alone meanwhile, so that no caller waits for
 * another's work.
 */
class ThreadPool {
 public:
  /*! \brief Starts `threads - 1` threads; the caller of a loop is the last one. Throws
   *  std::system_error when the system has no more threads. */
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /*! \brief How many threads work on a loop, the caller included. */
  int size() const { return static_cast<int>(threads_.size()) + 1; }

  /*!
   * \brief Calls `body(begin, end, worker)` on chunks that cover [0, count), and returns when all
   *        are done.
   *
   * Chunks begin at multiples of `grain` and have that length, except the last; their threads are
   * not defined. `worker` is in [0, size()) and no two calls of one loop with the same worker run
   * at once: it selects private scratch memory. Allocates nothing. `body` must not throw.
   */
  template <typename Body>
  void ParallelFor(int64_t count, int64_t grain, const Body& body) {
    Function call = [](const void* context, int64_t begin, int64_t end, int worker) {
      (*static_cast<const Body*>(context))(begin, end, worker);
    };
    Run(count, grain, call, &body);
  }

 private:
  using Function = void (*)(const void* context, int64_t begin, int64_t end, int worker);

  void Run(int64_t count, int64_t grain, Function function, const void* context);
  void Work(int worker);
  void Main(int worker);
  void Stop();

  /*! \brief A forked child has the pool, but none of its threads. */
  bool IsForked() const;

  std::vector<std::thread> threads_;
  int64_t process_;
  // Held by the caller whose loop is being run.
  std::mutex caller_;

  // The loop, written before `generation_` is raised.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::atomic<int64_t> next_{0};

  std::atomic<uint64_t> generation_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  // For sleeping threads; held while changing the three above.
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
};

}  // namespace npu::emulator

#endif  // EMULATOR_THREAD_POOL_H_
