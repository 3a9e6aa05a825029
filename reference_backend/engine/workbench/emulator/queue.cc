// SPDX-License-Identifier: Apache-2.0
/*!
 * \file queue.cc
 * \brief The threads that stand for a device.
 */
#include "queue.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace npu::emulator {
namespace {

/*! \brief This many jobs of a device run at once. */
constexpr size_t kThreads = 2;

/*! \brief A year: adding more to a time could overflow. */
constexpr int64_t kLong = int64_t{365} * 24 * 3600 * 1000000;

}  // namespace

Queue::Queue() : process_(getpid()) { threads_.reserve(kThreads); }

bool Queue::IsForked() const { return process_ != getpid(); }

void Queue::Submit(Job* job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (queued_ + 1 > idle_ && threads_.size() < kThreads) {
    try {
      threads_.emplace_back(&Queue::Work, this, shift_);
    } catch (const std::system_error&) {
      // One thread is enough.
      if (threads_.empty()) throw;
    }
  }
  job->cancel_ = false;
  job->state_ = Job::State::kQueued;
  job->next_ = nullptr;
  (first_ == nullptr ? first_ : last_->next_) = job;
  last_ = job;
  ++queued_;
  work_.notify_one();
}

void Queue::Execute(Job* job) {
  job->cancel_ = false;
  job->state_ = Job::State::kRunning;
  job->Perform();
  job->state_ = Job::State::kIdle;
}

bool Queue::Wait(Job* job, int64_t timeout_us) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto is_done = [job] { return job->state_ == Job::State::kDone; };
  if (timeout_us < 0) {
    done_.wait(lock, is_done);
  } else {
    auto until = Clock::now() + std::chrono::microseconds(std::min(timeout_us, kLong));
    if (!done_.wait_until(lock, until, is_done)) return false;
  }
  job->state_ = Job::State::kIdle;
  return true;
}

void Queue::Cancel(Job* job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (job->state_ == Job::State::kQueued) {
    Job* before = nullptr;
    Job* other = first_;
    for (; other != nullptr && other != job; other = other->next_) before = other;
    // It is in the queue of a parent process.
    if (other == nullptr) return;
    (before == nullptr ? first_ : before->next_) = job->next_;
    if (last_ == job) last_ = before;
    --queued_;
    job->Drop();
    Finish(job);
  } else if (job->state_ == Job::State::kRunning) {
    job->cancel_ = true;
    // It may sleep.
    done_.notify_all();
  }
}

void Queue::Sleep(const Job& job, Clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait_until(lock, until, [&job] { return job.cancel_.load(); });
}

void Queue::Rest() {
  std::vector<std::thread> ending;
  ending.reserve(kThreads);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(ending, threads_);
    ++shift_;
    work_.notify_all();
  }
  for (std::thread& thread : ending) thread.join();
}

void Queue::Work(uint64_t shift) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    work_.wait(lock, [&] { return first_ != nullptr || shift_ != shift; });
    --idle_;
    if (first_ == nullptr) return;
    Job* job = first_;
    first_ = job->next_;
    --queued_;
    job->state_ = Job::State::kRunning;
    lock.unlock();
    job->Perform();
    lock.lock();
    Finish(job);
  }
}

void Queue::Finish(Job* job) {
  job->state_ = Job::State::kDone;
  done_.notify_all();
}

}  // namespace npu::emulator
