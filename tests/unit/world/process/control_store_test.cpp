// The store that control holds, through the c10d interface of ranks on threads.
#include "sim/world/process/control_store.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sim/world/external/store_questions.h"
#include "sim/world/process/rank_store.h"

namespace shardproof::sim::world {
namespace control_store_test {

using namespace std::chrono_literals;
using Value = std::vector<uint8_t>;

// Control and any number of ranks in one process.
class Desk {
 public:
  StorePtr join() {
    const size_t rank = ranks_.size();
    ranks_.push_back(std::make_unique<StoreQuestions>([this, rank](const std::string& question) {
      const std::lock_guard lock(mutex_);
      store_.ask(question, [this, rank](const std::string& text) { ranks_[rank]->answered(text); });
    }));
    return make_rank_store(
        [questions = ranks_.back().get()](nlohmann::json request, std::chrono::milliseconds limit) {
          return questions->ask(std::move(request), limit);
        });
  }

 private:
  std::mutex mutex_;
  ControlStore store_;
  std::vector<std::unique_ptr<StoreQuestions>> ranks_;
};

TEST_CASE("ranks find in control's store what others wrote, also what is written later",
          "[external]") {
  Desk desk;
  const StorePtr first = desk.join(), second = desk.join();
  const Value value{0, 255, 10, 0};
  std::thread late([&] {
    std::this_thread::sleep_for(30ms);
    first->set("address", value);
  });
  CHECK(second->get("address") == value);  // waits
  late.join();
  CHECK(first->get("address") == value);
  second->wait({"address"}, 60s);
}

TEST_CASE("control's store counts, compares and deletes as c10d's own do", "[external]") {
  Desk desk;
  const StorePtr store = desk.join(), other = desk.join();
  CHECK(store->add("count", 2) == 2);
  CHECK(other->add("count", -5) == -3);
  CHECK(store->check({"count"}));
  CHECK_FALSE(store->check({"count", "none"}));
  CHECK(store->compareSet("key", Value{1}, Value{2}) ==
        Value{1});  // missing, and something expected
  CHECK(store->compareSet("key", Value{}, Value{2}) == Value{2});
  CHECK(other->compareSet("key", Value{3}, Value{4}) == Value{2});
  CHECK(other->compareSet("key", Value{2}, Value{4}) == Value{4});
  CHECK(store->getNumKeys() == 2);
  CHECK(store->deleteKey("key"));
  CHECK_FALSE(store->deleteKey("key"));
  CHECK(store->getNumKeys() == 1);
}

TEST_CASE("what nobody writes to control's store ends with the store's timeout", "[external]") {
  Desk desk;
  const StorePtr store = desk.join();
  store->setTimeout(20ms);
  CHECK_THROWS_WITH(store->get("none"),
                    Catch::Contains("control did not answer to 'get' of 'none' within 20 ms"));
  CHECK_THROWS(store->wait({"none"}, 10ms));
}

}  // namespace control_store_test
}  // namespace shardproof::sim::world
