#include "sim/world/process/rank_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shardproof::sim::world {
namespace {

using StoreBytes = std::vector<uint8_t>;
using std::chrono::milliseconds;

class RankStore final : public c10d::Store {
 public:
  explicit RankStore(AskStore ask) : ask_(std::move(ask)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto copy = c10::make_intrusive<RankStore>(ask_);
    copy->setTimeout(timeout_);
    return copy;
  }

  void set(const std::string& key, const StoreBytes& value) override {
    ask({{"op", "set"}, {"key", key}, {"value", nlohmann::json::binary(value)}}, timeout_);
  }

  StoreBytes get(const std::string& key) override { return bytes(wait_for(key, timeout_)); }

  int64_t add(const std::string& key, int64_t value) override {
    const std::string text = std::to_string(value);
    return std::stoll(ask({{"op", "add"},
                           {"key", key},
                           {"value", nlohmann::json::binary({text.begin(), text.end()})}},
                          timeout_));
  }

  StoreBytes compareSet(const std::string& key, const StoreBytes& expected,
                        const StoreBytes& value) override {
    return bytes(ask({{"op", "compare_set"},
                      {"key", key},
                      {"expected", nlohmann::json::binary(expected)},
                      {"value", nlohmann::json::binary(value)}},
                     timeout_));
  }

  bool deleteKey(const std::string& key) override {
    return ask({{"op", "delete"}, {"key", key}}, timeout_) == "1";
  }

  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
      return ask({{"op", "check"}, {"key", key}}, timeout_) == "1";
    });
  }

  int64_t getNumKeys() override {
    return std::stoll(ask({{"op", "count"}, {"key", ""}}, timeout_));
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const std::string& key : keys) wait_for(key, timeout);
  }

 private:
  static StoreBytes bytes(const std::string& value) { return {value.begin(), value.end()}; }

  std::string wait_for(const std::string& key, milliseconds timeout) {
    return ask({{"op", "get"}, {"key", key}}, timeout);
  }

  std::string ask(const nlohmann::json& request, milliseconds timeout) {
    const auto answer = ask_(request, timeout);
    if (!answer) {
      C10_THROW_ERROR(DistStoreError,
                      fmt::format("control did not answer to '{}' of '{}' within {} ms",
                                  request.at("op").get<std::string>(),
                                  request.at("key").get<std::string>(), timeout.count()));
    }
    return *answer;
  }

  AskStore ask_;
};

}  // namespace

StorePtr make_rank_store(AskStore ask) { return c10::make_intrusive<RankStore>(std::move(ask)); }

}  // namespace shardproof::sim::world
