#include "sim/world/rank/launcher_store.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/utf8.h"

namespace shardproof::sim::world {
namespace {

[[noreturn]] void store_failed(const LauncherStore& place, const std::string& what,
                               const std::exception& error) {
  const std::string text = error.what();
  throw_failed(
      fmt::format("the store at {}:{} {}: {}", place.host, place.port, what, first_line(text)),
      "look at how rank 0 ended", "aborted");
}

}  // namespace

std::string exchange_text(const LauncherStore& place, const std::string& key,
                          const std::string& value) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.waitWorkers = false;
  options.timeout = place.limit;
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(place.host, options);
  } catch (const std::exception& error) {
    store_failed(place, "cannot be reached", error);
  }
  try {
    if (!value.empty()) {
      store->set(key, value);
      return value;
    }
    return store->get_to_str(key);
  } catch (const std::exception& error) {
    store_failed(place, fmt::format("has no '{}'", key), error);
  }
}

}  // namespace shardproof::sim::world
