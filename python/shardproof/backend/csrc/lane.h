// Jobs that run one after the other, in the order in which they were given.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace shardproof {

class Lane {
 public:
  ~Lane() { stop(); }

  // Once all jobs are done.
  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // On the lane's own thread, later.
  void push(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
  }

  // On this thread, once all jobs before it are done.
  template <typename Job>
  void run_here(Job job) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
    busy_ = true;
    lock.unlock();
    try {
      job();
    } catch (...) {
      release();
      throw;
    }
    release();
  }

  bool is_busy() {
    std::lock_guard<std::mutex> lock(mutex_);
    return busy_ || !jobs_.empty();
  }

 private:
  void release() {
    std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
    changed_.notify_all();
  }
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return (stop_ || !jobs_.empty()) && !busy_; });
      if (jobs_.empty()) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job();
      job = nullptr;  // its tensors go without the lock
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
  bool busy_ = false;
  bool stop_ = false;
};

}  // namespace shardproof
