// SPDX-License-Identifier: Apache-2.0
/*!
 * \file thread_pool.cc
 * \brief A few threads that share loops.
 */
#include "thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace npu::emulator {

namespace {

// How often to spin before sleeping: loops often follow each other within microseconds, and waking
// a thread costs more than most of them.
constexpr int kSpins = 4000;

template <typename Condition>
bool Spin(const Condition& condition) {
  for (int i = 0; i < kSpins; ++i) {
    if (condition()) return true;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : process_(getpid()) {
  threads_.reserve(std::max(threads - 1, 0));
  try {
    for (int i = 1; i < threads; ++i) threads_.emplace_back(&ThreadPool::Main, this, i);
  } catch (...) {
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

bool ThreadPool::IsForked() const { return process_ != getpid(); }

void ThreadPool::Stop() {
  if (!threads_.empty() && IsForked()) {
    // There is nothing to join; the handles are abandoned, since destroying them would abort.
    new std::vector<std::thread>(std::move(threads_));
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t count, int64_t grain, Function function, const void* context) {
  bool alone = threads_.empty() || count <= grain || IsForked() || !caller_.try_lock();
  if (alone) {
    for (int64_t i = 0; i < count; i += grain) {
      function(context, i, std::min(i + grain, count), 0);
    }
    return;
  }
  std::lock_guard<std::mutex> caller(caller_, std::adopt_lock);
  function_ = function;
  context_ = context;
  count_ = count;
  grain_ = grain;
  next_ = 0;
  running_ = static_cast<int>(threads_.size());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++generation_;
  }
  start_.notify_all();
  Work(0);
  auto done = [this] { return running_ == 0; };
  if (!Spin(done)) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, done);
  }
}

void ThreadPool::Work(int worker) {
  for (;;) {
    int64_t begin = next_.fetch_add(grain_);
    if (begin >= count_) return;
    function_(context_, begin, std::min(begin + grain_, count_), worker);
  }
}

void ThreadPool::Main(int worker) {
  for (uint64_t seen = 0;; ++seen) {
    auto news = [this, seen] { return generation_ != seen || stop_; };
    if (!Spin(news)) {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, news);
    }
    if (stop_) return;
    Work(worker);
    if (--running_ == 0) {
      // The lock: the caller must not fall asleep between its look and this call.
      {
        std::lock_guard<std::mutex> lock(mutex_);
      }
      done_.notify_one();
    }
  }
}

}  // namespace npu::emulator
