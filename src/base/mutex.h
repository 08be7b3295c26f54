// A mutex whose use clang checks (-Wthread-safety, in tests/tidy/clang_tidy_test.py): a member that
// is SHARDPROOF_GUARDED_BY(mutex_) is used only while mutex_ is locked, and a function that
// SHARDPROOF_REQUIRES(mutex_) is called only then. std::mutex of libstdc++ has no such attributes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define SHARDPROOF_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define SHARDPROOF_THREAD_SAFETY(attribute)
#endif
#define SHARDPROOF_GUARDED_BY(mutex) SHARDPROOF_THREAD_SAFETY(guarded_by(mutex))
#define SHARDPROOF_REQUIRES(mutex) SHARDPROOF_THREAD_SAFETY(requires_capability(mutex))

namespace shardproof {

class SHARDPROOF_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() SHARDPROOF_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() SHARDPROOF_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Locks a mutex for its own life, but for the time between unlock() and lock().
class SHARDPROOF_THREAD_SAFETY(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) SHARDPROOF_THREAD_SAFETY(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~Lock() SHARDPROOF_THREAD_SAFETY(release_capability()) {
    if (locked_) mutex_.unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  void unlock() SHARDPROOF_THREAD_SAFETY(release_capability()) {
    locked_ = false;
    mutex_.unlock();
  }
  void lock() SHARDPROOF_THREAD_SAFETY(acquire_capability()) {
    mutex_.lock();
    locked_ = true;
  }

 private:
  Mutex& mutex_;
  bool locked_ = true;
};

// Waits release the mutex, and may return without a notice: call them in a loop that looks.
class Condition {
 public:
  void wait(Mutex& mutex) SHARDPROOF_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // Returns false when `until` has passed.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point until)
      SHARDPROOF_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = changed_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace shardproof
