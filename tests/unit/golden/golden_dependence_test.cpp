#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "sim/case/option.h"
#include "sim/case/runners.h"
#include "sim/case/scenario/scenario.h"

namespace shardproof::golden {
namespace {

// The golden's bytes in shared memory.
std::string golden_bytes(const sim::CaseSpec& spec) {
  const int fd = ::memfd_create("golden", 0);
  REQUIRE(fd >= 0);
  golden_main(spec, Members::kDue, fd);
  std::string bytes(static_cast<size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  REQUIRE(::pread(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  ::close(fd);
  return bytes;
}

// A value of the option's type that differs from the option's; null: other tests cover its type.
nlohmann::json other_value(const sim::CaseOption& option, const nlohmann::json& value) {
  if (option.type == sim::KeyType::kBool) return !value.get<bool>();
  if (option.type == sim::KeyType::kInteger) return value.get<int64_t>() + 1;
  if (option.type == sim::KeyType::kNumber) return value.get<double>() + 0.5;
  if (option.type == sim::KeyType::kText) return value.get<std::string>() + "x";
  if (option.type != sim::KeyType::kName) return nullptr;
  return option.choices.at(value == option.choices.front() ? 1 : 0);
}

}  // namespace

TEST_CASE("No option that the golden is said to ignore changes its bytes", "[golden]") {
  const std::string text = GENERATE(
      "run: {steps: 2}\n", "workload: logprobs\nprecision: float32\n",
      "workload: policy\nrun: {stages: [{do: score}, {do: train}, {do: save}, {do: load}]}\n");
  const sim::CaseSpec plain =
      sim::parse_scenario_text("t/x.yaml", "model: {num_hidden_layers: 1}\n" + text).cases.at(0);
  const std::string golden = golden_bytes(plain);
  REQUIRE(golden.size() > 1000);
  int64_t changed = 0;
  for (const sim::CaseOption& option : sim::case_options()) {
    if (option.golden != sim::Golden::kIgnores || !option.get) continue;
    sim::CaseSpec spec = plain;
    const nlohmann::json other = other_value(option, option.get(spec, sim::Extent::kAll));
    if (other.is_null()) continue;
    option.set(spec, other);
    INFO(option.path << " " << option.member);
    CHECK((golden_bytes(spec) == golden));
    ++changed;
  }
  CHECK(changed > 40);
  sim::CaseSpec other_seed = plain;
  other_seed.seed += 1;
  CHECK((golden_bytes(other_seed) != golden));
}

}  // namespace shardproof::golden
