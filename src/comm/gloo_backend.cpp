// The only file that knows ProcessGroupGloo. Gloo's symbols are in libtorch_cpu; only its headers
// come from the system.
#include "comm/gloo_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>

#include "base/error.h"
#include "comm/call_text.h"

namespace shardproof {
namespace {

using Device = std::shared_ptr<gloo::transport::Device>;

Device make_device(const std::string& host) {
  try {
    if (host.empty()) return c10d::ProcessGroupGloo::createDefaultDevice();
    return c10d::ProcessGroupGloo::createDeviceForHostname(host);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error({.kind = ErrorKind::kFailed,
                 .what = fmt::format("Gloo cannot listen on '{}': {}", host,
                                     text.substr(0, text.find('\n'))),
                 .fix = "name an address of this host",
                 .code = "threw"});
  }
}

// One rank's part in making groups: a device for all of them, and how often each was made.
class GlooGroups {
 public:
  GlooGroups(StorePtr store, int64_t rank, GlooSettings settings)
      : store_(std::move(store)), rank_(rank), settings_(std::move(settings)) {}

  c10::intrusive_ptr<c10d::Backend> make(const std::string& name,
                                         const std::vector<int64_t>& ranks) {
    if (!device_) device_ = make_device(settings_.host);
    const std::string key = fmt::format("{}[{}]", name, fmt::join(ranks, ","));
    const int64_t count = made_[key]++;
    const auto store = with_prefix(store_, fmt::format("{}#{}", key, count));
    const auto found = std::find(ranks.begin(), ranks.end(), rank_);
    SHARDPROOF_ASSERT(found != ranks.end(), "a rank joins only its own groups");
    auto options = c10d::ProcessGroupGloo::Options::create(settings_.timeout);
    options->devices.push_back(device_);
    options->threads = 1;
    options->group_name = key;
    try {
      return c10::make_intrusive<c10d::ProcessGroupGloo>(
          store, static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()), options);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw Error({.kind = ErrorKind::kFailed,
                   .what = fmt::format("group {} was not made within {} ms: {}",
                                       group_name(name, ranks), settings_.timeout.count(),
                                       text.substr(0, text.find('\n'))),
                   .fix = "some member never came to it; look at how the other ranks ended",
                   .code = "hung"});
    }
  }

 private:
  StorePtr store_;
  int64_t rank_;
  GlooSettings settings_;
  Device device_;
  std::map<std::string, int64_t> made_;
};

}  // namespace

BackendFactory gloo_factory(StorePtr store, int64_t rank, GlooSettings settings) {
  auto groups = std::make_shared<GlooGroups>(std::move(store), rank, std::move(settings));
  return [groups](const std::string& name, const std::vector<int64_t>& ranks) {
    return groups->make(name, ranks);
  };
}

}  // namespace shardproof
