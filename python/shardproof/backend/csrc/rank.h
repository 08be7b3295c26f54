// What one rank keeps for all of its groups: settings, its last calls in the store, its log, the
// faults that are planted in it.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "call.h"

namespace shardproof {

// A wrong contribution or result of this rank at one of its calls, as the scenarios have them.
struct Fault {
  std::string kind;     // drop, double, average, stale, corrupt, skip, wrong_group
  std::string op;       // "" any
  std::string group;    // "" any
  std::string site;     // "train.py:31"; "" any
  std::string to;       // wrong_group: the group that makes the call
  int64_t call = -1;    // the call's number in its group; -1: the first that matches
  bool every = false;   // it acts in each call that matches
  bool output = false;  // corrupt: a bit of the result, not of the contribution
  std::string text;     // as the user wrote it

  bool acted = false;
  Tensors before = {};  // stale: what the matching call before sent
  // Of the calls before: what they sent, by dtype and shape.
  std::map<std::string, Tensors> sent = {};
};
using FaultPtr = std::shared_ptr<const Fault>;

struct Settings {
  int64_t rank = 0;
  int64_t timeout_ms = 300000;
  int64_t notice_ms = 10000;  // after which a waiting rank says for whom it waits; 0: never
  bool digests = false;
  bool checks = true;                // otherwise the calls are only noted, and faults planted
  std::string calls_folder;          // "": no log
  std::vector<Fault> faults;         // of this rank
  std::vector<std::string> skipped;  // folders and files that are never shown as call sites
  std::string here;
};

class Rank {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  Rank(Settings settings, const StorePtr& store)
      : settings_(std::move(settings)),
        sites_(settings_.skipped, settings_.here),
        store_(store->clone()),
        reports_(store->clone()) {
    if (!settings_.calls_folder.empty()) {
      const std::string path = settings_.calls_folder + "/rank" + std::to_string(settings_.rank);
      calls_.open(path + ".calls");
      if (settings_.digests) digests_.open(path + ".digests");
      if (!settings_.faults.empty()) faults_.open(path + ".faults");
    }
    reporter_ = std::thread([this] { report(); });
  }
  ~Rank() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    reporter_.join();
    for (const Fault& fault : settings_.faults) {
      if (fault.acted) continue;
      std::fprintf(stderr,
                   "shardproof: the fault \"%s\" never acted on rank %ld: no call of this "
                   "rank matches it; SHARDPROOF_CALLS=DIR lists its calls\n",
                   fault.text.c_str(), static_cast<long>(settings_.rank));
    }
  }

  const Settings& settings() const { return settings_; }
  std::string call_site() const { return sites_.find(); }

  // The rank enters a call. `number`: how many calls of the group it has entered.
  void enter(const std::string& group, const std::string& group_name, const Call& call,
             int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    last_ =
        "call " + std::to_string(call.sequence) + " of group " + group_name + ": " + call.text();
    if (number > 0) entered_[group] = number;
    ++version_;
    if (!calls_.is_open()) return;
    const size_t cut = call.tensors.rfind(' ');
    const bool has = cut != std::string::npos;
    calls_ << call.sequence << '\t' << group_name << '\t' << call.op_text() << '\t'
           << (has ? call.tensors.substr(cut + 1) : "-") << '\t'
           << (has ? call.tensors.substr(0, cut) : "-") << '\t'
           << site_text(call) << test_column() << std::endl;
  }
  void log_digests(const std::string& group_name, const Call& call, uint64_t sent,
                   uint64_t received) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!digests_.is_open()) return;
    digests_ << call.sequence << '\t' << group_name << '\t' << call.op_text() << '\t' << std::hex
             << sent << '\t' << received << std::dec << std::endl;
  }

  // The fault that acts at this call, as it is now; null without one. `sent` is kept for one that
  // acts later.
  FaultPtr fault_at(const std::string& group, const Call& call, const Tensors& sent) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Fault& fault : settings_.faults) {
      const bool concerns = (!fault.acted || fault.every) &&
                            (fault.op.empty() || fault.op == call.op) &&
                            (fault.group.empty() || fault.group == group) &&
                            (fault.site.empty() || fault.site == site_text(call));
      if (!concerns) continue;
      fault.before = fault.kind == "stale" ? exchanged(fault.sent[call.tensors], sent) : Tensors();
      const bool now = fault.call < 0 || call.sequence == fault.call;
      if (!now || (fault.kind == "stale" && fault.before.empty())) continue;
      if (!fault.acted) {
        std::fprintf(stderr,
                     "shardproof: the fault \"%s\" acts on rank %ld in call %ld of group "
                     "%s: %s\n",
                     fault.text.c_str(), static_cast<long>(settings_.rank),
                     static_cast<long>(call.sequence), group.c_str(), call.text().c_str());
      }
      fault.acted = true;
      return std::make_shared<const Fault>(fault);
    }
    return nullptr;
  }
  // A fault has changed something.
  void note(const Fault& fault) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (faults_.is_open()) faults_ << fault.text << std::endl;
  }

  // All groups of this rank.
  void add(c10d::Backend* group) {
    std::lock_guard<std::mutex> lock(mutex_);
    groups_.push_back(group);
  }
  void remove(c10d::Backend* group) {
    std::lock_guard<std::mutex> lock(mutex_);
    groups_.erase(std::find(groups_.begin(), groups_.end(), group));
  }
  std::vector<c10d::Backend*> groups() {
    std::lock_guard<std::mutex> lock(mutex_);
    return groups_;
  }

  struct Status {
    bool known = false, ended = false;
    int64_t entered = 0;  // calls of the group
    std::string last;     // "call 2 of group tp [0, 1]: all_reduce(sum) ..."
  };
  // What the rank waits for in a call, while this object lives.
  struct Wait {
    std::string where;  // "rank 0 waits in call 3 of group tp [0, 1]: all_reduce(sum) ..."
    Integers others;    // global ranks
    std::string group;
    int64_t number = 0;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    bool told = false;
  };
  class Waiting {
   public:
    Waiting(Rank& own, const Wait& wait) : own_(own), wait_(wait) {
      std::lock_guard<std::mutex> lock(own_.mutex_);
      own_.waits_.insert(&wait_);
    }
    ~Waiting() {
      std::lock_guard<std::mutex> lock(own_.mutex_);
      own_.waits_.erase(&wait_);
    }

   private:
    Rank& own_;
    Wait wait_;
  };

  // Those of a wait that have not come, and their last calls in words.
  struct Missing {
    Integers ranks;
    std::string last;  // "; rank 1's last call was call 2 of group ..."
  };
  Missing missing(const Wait& wait) {
    Missing out;
    for (const int64_t rank : wait.others) {
      const Status other = status(rank, wait.group);
      if (wait.number > 0 && other.entered >= wait.number) continue;
      out.ranks.push_back(rank);
      out.last += "; rank " + std::to_string(rank) + (other.ended ? " has left, and its" : "'s") +
                  " last call was " + (other.known ? other.last : "not told yet");
    }
    return out;
  }
  // What another rank last said of itself, at most a second ago.
  Status status(int64_t rank, const std::string& group) {
    Status status;
    std::istringstream lines(read("rank/" + std::to_string(rank)));
    std::string line;
    while (std::getline(lines, line)) {
      status.known = true;
      const std::string value = line.substr(line.find(' ') + 1);
      if (line.rfind("ended", 0) == 0) status.ended = true;
      if (line.rfind("last ", 0) == 0) status.last = value;
      if (line.rfind("group ", 0) == 0 && value.substr(value.find(' ') + 1) == group) {
        status.entered = std::stoll(value);
      }
    }
    return status;
  }

  // The first finding of all ranks, "" while there is none.
  std::string finding() { return read("finding"); }
  void publish_finding(const std::string& text) {
    try {
      std::lock_guard<std::mutex> lock(store_mutex_);
      if (!store_->check({"finding"})) store_->set("finding", text);
    } catch (const std::exception&) {  // the store has gone: the finding is told on this rank only
    }
  }
  std::chrono::milliseconds report_interval() const {
    int64_t interval = std::min<int64_t>(1000, settings_.timeout_ms / 4);
    if (settings_.notice_ms > 0) interval = std::min(interval, settings_.notice_ms / 4);
    return std::chrono::milliseconds(std::max<int64_t>(interval, 10));
  }
  // The others see this rank's last call at once, not within a second.
  void publish_status() { publish(store_, store_mutex_, status_text()); }

 private:
  static std::string site_text(const Call& call) { return call.site.empty() ? "C++" : call.site; }
  // Under pytest: the test that makes the call.
  static std::string test_column() {
    const char* test = std::getenv("PYTEST_CURRENT_TEST");
    return test == nullptr ? "" : std::string("\t") + test;
  }
  // What was kept, in whose place a copy of `sent` is kept.
  static Tensors exchanged(Tensors& kept, const Tensors& sent) {
    Tensors copies;
    for (const at::Tensor& tensor : sent) copies.push_back(tensor.detach().clone());
    return std::exchange(kept, std::move(copies));
  }
  std::string read(const std::string& key) {
    try {
      std::lock_guard<std::mutex> lock(store_mutex_);
      return store_->check({key}) ? store_->get_to_str(key) : "";
    } catch (const std::exception&) {
      return "";
    }
  }
  std::string status_text() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string text = stop_ ? "ended\n" : "running\n";
    text += "last " + last_ + "\n";
    for (const auto& [group, number] : entered_) {
      text += "group " + std::to_string(number) + " " + group + "\n";
    }
    return text;
  }
  bool publish(const StorePtr& store, std::mutex& mutex, const std::string& text) {
    try {
      std::lock_guard<std::mutex> lock(mutex);
      store->set("rank/" + std::to_string(settings_.rank), text);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  void report() {
    uint64_t published = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
      changed_.wait_for(lock, report_interval(), [this] { return stop_; });
      if (!stop_) tell_long_waits(lock);
      if (version_ == published && !stop_) continue;
      published = version_;
      lock.unlock();
      const bool done = publish(reports_, reports_mutex_, status_text());
      lock.lock();
      if (!done) return;
    }
  }

  // Once for each wait; the lock is not held while the store is asked.
  void tell_long_waits(std::unique_lock<std::mutex>& lock) {
    if (settings_.notice_ms == 0) return;
    const auto before =
        std::chrono::steady_clock::now() - std::chrono::milliseconds(settings_.notice_ms);
    std::vector<Wait> due;
    for (Wait* wait : waits_) {
      if (wait->told || wait->since > before) continue;
      wait->told = true;
      due.push_back(*wait);
    }
    lock.unlock();
    for (const Wait& wait : due) {
      const Missing absent = missing(wait);
      if (absent.ranks.empty()) continue;
      std::fprintf(stderr,
                   "shardproof: %s; %s did not come within %s%s; the wait ends with an "
                   "error after %s\n",
                   wait.where.c_str(), names(absent.ranks).c_str(),
                   seconds_text(settings_.notice_ms).c_str(), absent.last.c_str(),
                   seconds_text(settings_.timeout_ms).c_str());
    }
    lock.lock();
  }

  Settings settings_;
  const CallSite sites_;
  std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  std::map<std::string, int64_t> entered_;
  std::set<Wait*> waits_;
  std::string last_ = "none";
  uint64_t version_ = 0;
  bool stop_ = false;
  std::ofstream calls_, digests_, faults_;
  std::vector<c10d::Backend*> groups_;
  std::mutex store_mutex_, reports_mutex_;
  StorePtr store_, reports_;  // two, so that a slow report delays no finding
  std::thread reporter_;
};

// Writes `values` over `tensors`, in place where the user's own tensors are sent and overwritten,
// else into copies, so that what the user keeps stays as it was.
inline void replace(Tensors& tensors, const Tensors& values, bool in_place) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (in_place)
      tensors[i].copy_(values[i]);
    else
      tensors[i] = values[i];
  }
}

// The lowest bit of the exponent of the largest element, or the lowest bit of an integer.
inline void flip_bit(at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  at::Tensor plain = tensor.detach().cpu().contiguous().clone();
  const bool floating = plain.is_floating_point();
  const int64_t element = floating ? plain.abs().argmax().item<int64_t>() : 0;
  const int64_t width = plain.element_size();
  const auto type = plain.scalar_type();
  const int bit = !floating               ? 0
                  : type == at::kDouble   ? 52
                  : type == at::kFloat    ? 23
                  : type == at::kHalf     ? 10
                  : type == at::kBFloat16 ? 7
                                          : 3;
  auto* bytes = static_cast<unsigned char*>(plain.data_ptr()) + element * width;
  bytes[bit / 8] ^= static_cast<unsigned char>(1 << (bit % 8));
  tensor.copy_(plain);
}

// What the fault makes of a rank's contribution. Returns whether it changed anything.
inline bool spoil_sent(const Fault& fault, Tensors& sent, bool in_place) {
  Tensors values;
  bool changed = false;
  for (size_t i = 0; i < sent.size(); ++i) {
    const at::Tensor own = sent[i].detach();
    if (fault.kind == "drop")
      values.push_back(at::zeros_like(own));
    else if (fault.kind == "double")
      values.push_back(own + own);
    else if (fault.kind == "stale" && i < fault.before.size() &&
             fault.before[i].sizes() == own.sizes())
      values.push_back(fault.before[i].clone());
    else
      values.push_back(own.clone());
    changed = changed || !at::equal(values.back(), own);
  }
  if (fault.kind == "corrupt" && !fault.output && !values.empty()) {
    flip_bit(values[0]);
    changed = true;
  }
  replace(sent, values, in_place);
  return changed;
}

// What it makes of the result that the rank receives from `size` members. Returns whether it
// changed anything.
inline bool spoil_received(const Fault& fault, Tensors& received, int size) {
  bool changed = false;
  if (fault.kind == "average") {
    for (at::Tensor& tensor : received) {
      const at::Tensor value = tensor / size;
      changed = changed || !at::equal(value, tensor);
      tensor.copy_(value);
    }
  }
  if (fault.kind == "corrupt" && fault.output && !received.empty()) {
    flip_bit(received[0]);
    changed = true;
  }
  return changed;
}

}  // namespace shardproof
