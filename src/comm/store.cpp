// c10d's stores, with failures as sentences.
#include "comm/store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"

namespace shardproof {

void quiet_torch_logs() {
  constexpr int kFatalOnly = 3;
  FLAGS_caffe2_log_level = kFatalOnly;
}

StorePtr make_hash_store() { return c10::make_intrusive<c10d::HashStore>(); }

StorePtr make_file_store(const std::string& path, int64_t world_size) {
  return c10::make_intrusive<c10d::FileStore>(path, static_cast<int>(world_size));
}

StorePtr make_tcp_store(const std::string& host, uint16_t port, bool host_it, int64_t world_size,
                        std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = host_it;
  options.numWorkers = static_cast<size_t>(world_size);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error({.kind = ErrorKind::kFailed,
                 .what = fmt::format("no store at {}:{}: {}", host, port,
                                     text.substr(0, text.find('\n'))),
                 .fix = host_it ? "choose a free port" : "start rank 0 first, or mend the address",
                 .code = "hung"});
  }
}

StorePtr with_prefix(const StorePtr& store, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

}  // namespace shardproof
