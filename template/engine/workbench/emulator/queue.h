// SPDX-License-Identifier: Apache-2.0
/*!
 * \file queue.h
 * \brief The threads that act as a device, asynchronously to the caller.
 */
#ifndef EMULATOR_QUEUE_H_
#define EMULATOR_QUEUE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace npu::emulator {

/*! \brief A unit of work, defined by a subclass; reusable. */
class Job {
 public:
  virtual ~Job() = default;

 protected:
  /*! \brief Runs it on some thread. Must not throw. */
  virtual void Perform() = 0;
  /*! \brief It was cancelled before it began. Must not throw. */
  virtual void Drop() = 0;

  /*! \brief Set to end the job early. */
  std::atomic<bool> cancel_{false};

 private:
  friend class Queue;

  enum class State { kIdle, kQueued, kRunning, kDone };
  std::atomic<State> state_{State::kIdle};
  /*! \brief The next one in the queue. */
  Job* next_ = nullptr;
};

/*!
 * \brief Jobs that wait for a few threads. Allocates nothing once the threads are there.
 *
 * No two calls share a job, but Cancel. A forked child has the queue, but none of its threads: it
 * makes another queue, and may only call IsForked of this one.
 */
class Queue {
 public:
  using Clock = std::chrono::steady_clock;

  Queue();

  /*! \brief Starts a job. Throws std::system_error when the system has no more threads. */
  void Submit(Job* job);
  /*! \brief Does a job on the caller's thread. */
  static void Execute(Job* job);
  /*! \brief Waits until a submitted job is done; false if the time was up. */
  bool Wait(Job* job, int64_t timeout_us);
  /*! \brief Ends a job early; no effect if it is not pending or running. */
  void Cancel(Job* job);
  /*! \brief For a running job: sleeps for this time, or until it is cancelled. */
  void Sleep(const Job& job, Clock::time_point until);
  /*! \brief Ends the threads when nothing is left to do. They start again when needed. */
  void Rest();

  /*! \brief Whether a job was submitted, and Wait has not seen its end. */
  static bool IsPending(const Job& job) { return job.state_ != Job::State::kIdle; }
  /*! \brief In a forked child: what was submitted to the parent's queue is not done here. */
  static void Forget(Job* job) { job->state_ = Job::State::kIdle; }

  bool IsForked() const;

 private:
  void Work(uint64_t shift);
  void Finish(Job* job);

  int64_t process_;
  std::mutex mutex_;
  /*! \brief Notified of work or the end of a shift; of a finished or cancelled job. */
  std::condition_variable work_, done_;
  Job* first_ = nullptr;
  Job* last_ = nullptr;
  size_t queued_ = 0, idle_ = 0;
  std::vector<std::thread> threads_;
  /*! \brief Threads of earlier shifts end. */
  uint64_t shift_ = 0;
};

}  // namespace npu::emulator

#endif  // EMULATOR_QUEUE_H_
