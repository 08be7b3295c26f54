// Goldens that are started before a case needs them.
#include "sim/run/golden_store.h"

#include <catch2/catch.hpp>
#include <optional>

#include "tests/support/small_llama.h"
#include "tests/unit/world/launch/toy_workers.h"

namespace shardproof::sim::run {

using namespace world;
namespace {

using Golden = std::shared_ptr<const GoldenStore::Golden>;

CaseSpec case_with(const std::string& act, const std::string& model = "") {
  CaseSpec spec = toy_case("gloo", 1, {{"golden", act}});
  spec.model = {{"named", model}};
  return spec;
}

}  // namespace

TEST_CASE("a case takes the golden that was started ahead", "[run]") {
  WorldPool pool(toy_workers());
  GoldenStore goldens(pool, false, std::nullopt);
  goldens.start(case_with("echo"));
  goldens.start(case_with("echo"));  // it is under way
  CHECK(goldens.computing() == 1);
  goldens.start(case_with("echo", "another"));
  CHECK(goldens.computing() == 2);
  Golden waited;
  goldens.get(case_with("echo"), [&](const Golden& golden) { waited = golden; });
  CHECK(waited == nullptr);
  pool.wait_until([&] { return goldens.computing() == 0; });
  REQUIRE(waited != nullptr);
  CHECK(waited->outcome.ok);
  Golden at_once;
  goldens.get(case_with("echo"), [&](const Golden& golden) { at_once = golden; });
  CHECK(at_once == waited);
}

TEST_CASE("a golden that failed before anybody waited for it is computed again", "[run]") {
  WorldPool pool(toy_workers());
  GoldenStore goldens(pool, false, std::nullopt);
  goldens.start(case_with("bad"));
  pool.wait_until([&] { return goldens.computing() == 0; });
  Golden waited, later;
  goldens.get(case_with("bad"), [&](const Golden& golden) { waited = golden; });
  CHECK(goldens.computing() == 1);
  pool.wait_until([&] { return waited != nullptr; });
  CHECK(waited->outcome.message.find("toy fact") != std::string::npos);
  // A case saw this failure, so that later ones have it at once.
  goldens.get(case_with("bad"), [&](const Golden& golden) { later = golden; });
  CHECK(later == waited);
}

TEST_CASE("a golden that is too large is refused once, when somebody waits for it", "[run]") {
  WorldPool pool(toy_workers());
  GoldenStore goldens(pool, false, MachineLimits{.memory = 1});
  const CaseSpec spec = small_llama_case(3);
  goldens.start(spec);
  pool.wait_until([&] { return goldens.computing() == 0; });
  goldens.start(spec);  // nobody waited, so that it was forgotten
  CHECK(goldens.computing() == 1);
  Golden waited, later;
  goldens.get(spec, [&](const Golden& golden) { waited = golden; });
  CHECK(waited == nullptr);
  pool.wait_until([&] { return waited != nullptr; });
  CHECK(waited->outcome.kind == ResultKind::kBadInput);
  CHECK(waited->outcome.message.find("GiB of memory") != std::string::npos);
  goldens.get(spec, [&](const Golden& golden) { later = golden; });
  CHECK(later == waited);
}

TEST_CASE("a golden may end after its store", "[run]") {
  WorldPool pool(toy_workers());
  bool called = false;
  std::optional<GoldenStore> goldens;
  goldens.emplace(pool, false, std::nullopt);
  goldens->get(case_with("echo"), [&](const Golden&) { called = true; });
  goldens.reset();
  const OwnedFd other(::memfd_create("golden", MFD_CLOEXEC));
  for (int i = 0; i < 3; ++i) {
    pool.run_golden(case_with("echo", "another"), golden::Members::kDue, other.get(), "");
  }
  CHECK_FALSE(called);
}

}  // namespace shardproof::sim::run
