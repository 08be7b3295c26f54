// A log of set, add, compare-and-set and delete; the state is what replaying it
// gives.
//
// A writer takes bytes, fills them with its record, and then links the record to
// the last one. Nobody waits for a writer: one that is killed on the way leaves
// bytes that nothing leads to.
#include "sim/world/process/page_store.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <optional>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/mapped_pages.h"
#include "base/mutex.h"

namespace shardproof::sim::world {
namespace {

using Bytes = std::vector<uint8_t>;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

enum class Operation : uint32_t { kSet, kAdd, kCompareSet, kDelete };

// Where a record begins, from the beginning of the pages; 0: there is none yet.
using Link = std::atomic<uint64_t>;

struct LogHeader {
  std::atomic<uint64_t> taken;    // bytes behind the header that writers have taken
  std::atomic<uint32_t> version;  // counts linked records; waited on as a futex
  uint32_t unused;
  Link first;
};

struct LogRecord {
  Link next;
  Operation operation;
  uint32_t key_bytes;
  uint32_t expected_bytes;  // of kCompareSet: its value begins with what is expected
  uint32_t value_bytes;
};
static_assert(sizeof(LogHeader) == 24 && sizeof(LogRecord) == 24);
static_assert(Link::is_always_lock_free);

// The mapped pages; several stores of one process may look at them.
class LogPages {
 public:
  explicit LogPages(int fd) : pages_(MappedPages::of_file(fd, true)) {
    if (pages_.data() == nullptr) {
      throw InternalError("the pages of a world's store cannot be mapped");
    }
  }

  LogHeader& header() const { return *static_cast<LogHeader*>(pages_.data()); }
  LogRecord& record(uint64_t at) const {
    return *reinterpret_cast<LogRecord*>(static_cast<char*>(pages_.data()) + at);
  }

  // A record of this that is linked to none. Returns where it begins.
  uint64_t make_record(Operation operation, const std::string& key, const std::string& expected,
                       const std::string& value) {
    const uint64_t at = take(sizeof(LogRecord) + key.size() + expected.size() + value.size());
    LogRecord& record = this->record(at);
    record.operation = operation;
    record.key_bytes = static_cast<uint32_t>(key.size());
    record.expected_bytes = static_cast<uint32_t>(expected.size());
    record.value_bytes = static_cast<uint32_t>(value.size());
    char* to = reinterpret_cast<char*>(&record + 1);
    for (const std::string* part : {&key, &expected, &value}) {
      std::memcpy(to, part->data(), part->size());
      to += part->size();
    }
    return at;
  }

  // Makes `record` the one behind the last. False: `last` leads to another by now.
  bool link(Link& last, uint64_t record) {
    uint64_t none = 0;
    if (!last.compare_exchange_strong(none, record)) return false;
    header().version.fetch_add(1);
    ::syscall(SYS_futex, &header().version, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return true;
  }

  // Until something was linked after `version` was read, or `most` has
  // passed; may return early.
  void wait_for_more(uint32_t version, milliseconds most) const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec limit{seconds.count(), (most - seconds).count() * 1'000'000};
    ::syscall(SYS_futex, &header().version, FUTEX_WAIT, version, &limit, nullptr, 0);
  }

 private:
  // Returns where `bytes` that nobody else has begin, at a multiple of 8.
  uint64_t take(size_t bytes) {
    const size_t size = (bytes + 7) / 8 * 8, room = pages_.size() - sizeof(LogHeader);
    uint64_t taken = header().taken.load();
    do {
      if (size > room - taken) {
        throw InternalError(
            fmt::format("the store of a world is full: {} of its {} bytes are "
                        "used, and {} more are needed",
                        taken, room, size));
      }
    } while (!header().taken.compare_exchange_weak(taken, taken + size));
    return sizeof(LogHeader) + taken;
  }

  MappedPages pages_;
};

class PageStore final : public c10d::Store {
 public:
  explicit PageStore(std::shared_ptr<LogPages> pages)
      : pages_(std::move(pages)), last_(&pages_->header().first) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto copy = c10::make_intrusive<PageStore>(pages_);
    copy->setTimeout(timeout_);
    return copy;
  }

  void set(const std::string& key, const Bytes& value) override {
    write(Operation::kSet, key, "", text(value));
  }

  Bytes get(const std::string& key) override {
    wait({key}, timeout_);
    const Lock lock(mutex_);
    return bytes(state_[key]);
  }

  int64_t add(const std::string& key, int64_t value) override {
    return std::stoll(write(Operation::kAdd, key, "", std::to_string(value)));
  }

  // As the other stores: where the key is missing, an empty `expected` sets it,
  // and anything else comes back unchanged.
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& value) override {
    return bytes(write(Operation::kCompareSet, key, text(expected), text(value)));
  }

  bool deleteKey(const std::string& key) override {
    return !write(Operation::kDelete, key, "", "").empty();
  }

  bool check(const std::vector<std::string>& keys) override {
    const Lock lock(mutex_);
    return have(keys);
  }

  int64_t getNumKeys() override {
    const Lock lock(mutex_);
    replay_all();
    return static_cast<int64_t>(state_.size());
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto until = steady_clock::now() + timeout;
    for (;;) {
      const uint32_t version = pages_->header().version.load();  // before looking: no wake is lost
      if (check(keys)) return;
      milliseconds left{1000};
      if (timeout != kNoTimeout) {
        left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
        if (left <= milliseconds(0)) {
          C10_THROW_ERROR(DistStoreError,
                          fmt::format("nobody wrote '{}' within {} ms",
                                      keys.empty() ? "" : keys.front(), timeout.count()));
        }
      }
      pages_->wait_for_more(version, std::min(left, milliseconds(1000)));
    }
  }

 private:
  static std::string text(const Bytes& value) { return {value.begin(), value.end()}; }
  static Bytes bytes(const std::string& value) { return {value.begin(), value.end()}; }

  // Appends, and returns what the operation came to once all before it are
  // known. Waits for nobody: where another record was linked first, that one is
  // replayed and the next place tried.
  std::string write(Operation operation, const std::string& key, const std::string& expected,
                    const std::string& value) {
    const Lock lock(mutex_);
    const uint64_t mine = pages_->make_record(operation, key, expected, value);
    do {
      replay_all();
    } while (!pages_->link(*last_, mine));
    return *replay_one();
  }

  bool have(const std::vector<std::string>& keys) SHARDPROOF_REQUIRES(mutex_) {
    replay_all();
    for (const std::string& key : keys) {
      if (state_.count(key) == 0) return false;
    }
    return true;
  }

  void replay_all() SHARDPROOF_REQUIRES(mutex_) {
    while (replay_one()) {
    }
  }

  // What the next record's operation came to; none: there is no next record.
  std::optional<std::string> replay_one() SHARDPROOF_REQUIRES(mutex_) {
    const uint64_t at = last_->load(std::memory_order_acquire);
    if (at == 0) return std::nullopt;
    LogRecord& record = pages_->record(at);
    last_ = &record.next;
    const char* from = reinterpret_cast<const char*>(&record + 1);
    const std::string key(from, record.key_bytes);
    const std::string expected(from + record.key_bytes, record.expected_bytes);
    const std::string value(from + record.key_bytes + record.expected_bytes, record.value_bytes);
    return apply(record.operation, key, expected, value);
  }

  std::string apply(Operation operation, const std::string& key, const std::string& expected,
                    const std::string& value) SHARDPROOF_REQUIRES(mutex_) {
    const auto found = state_.find(key);
    switch (operation) {
      case Operation::kSet:
        return state_[key] = value;
      case Operation::kAdd: {
        const int64_t before = found == state_.end() ? 0 : std::stoll(found->second);
        return state_[key] = std::to_string(before + std::stoll(value));
      }
      case Operation::kCompareSet:
        if (found == state_.end() && !expected.empty()) return expected;
        if (found != state_.end() && found->second != expected) return found->second;
        return state_[key] = value;
      case Operation::kDelete:
        return state_.erase(key) > 0 ? "deleted" : "";
    }
    return "";
  }

  std::shared_ptr<LogPages> pages_;
  Mutex mutex_;                               // one process may have several threads at one store
  Link* last_ SHARDPROOF_GUARDED_BY(mutex_);  // of the last record that was replayed
  std::map<std::string, std::string> state_ SHARDPROOF_GUARDED_BY(mutex_);
};

}  // namespace

StorePtr make_page_store(int fd) {
  return c10::make_intrusive<PageStore>(std::make_shared<LogPages>(fd));
}

}  // namespace shardproof::sim::world
