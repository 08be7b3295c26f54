// The calls of the stages `groups` and `pairs`: codes are sent and reduced, and what arrives is
// compared with what must arrive, to the bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "sim/uses/validate/damage.h"
#include "sim/uses/validate/suite.h"

namespace shardproof::sim::validate {

// Wrong elements in what one rank received in one call.
struct WrongResult {
  std::string call;  // "all_reduce(sum) world float32 [1023] round 0": equal on all its members
  int64_t receiver = 0;
  std::vector<int64_t> group = {};    // the ranks of the call
  int64_t sender = -1;                // whose elements they are; -1: a reduction
  std::vector<int64_t> sources = {};  // a reduction: whose addends explain them; []: unknown
  std::string damage = {}, pattern = {}, text = {};
  int64_t wrong = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WrongResult, call, receiver, group, sender, sources, damage,
                                   pattern, text, wrong)

// What one rank did and found.
struct ExchangeReport {
  int64_t checks = 0, elements = 0;
  int64_t wrong_checks = 0;                // all of them; `evidence` has the first
  std::vector<WrongResult> evidence;       // at most kMaxEvidence
  std::vector<std::string> left_out = {};  // "avg float16 in world: ..": not exact, or not there
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExchangeReport, checks, elements, wrong_checks, evidence,
                                   left_out)
inline constexpr size_t kMaxEvidence = 200;

class Exchange {
 public:
  Exchange(const Suite& suite, int64_t rank, int64_t world_size, const std::string& device);

  // Every op and dtype in this group; `round` draws sizes and codes. All members call it.
  void run_group(Communicator& group, int64_t round);
  // Messages between this rank and the member `place` of the group, both ways.
  void run_pair(Communicator& group, int64_t place, int64_t round);
  const ExchangeReport& report() const { return report_; }

 private:
  struct Check;
  int64_t drawn_size(const Check& check) const;
  void run_check(Communicator& group, Check check);
  void run_reduction(Communicator& group, const Check& check);
  void run_movement(Communicator& group, const Check& check);
  std::vector<int64_t> sizes_for(const Check& check) const;

  at::Tensor row(const Check& check, int64_t rank, int64_t count) const;
  at::Tensor placed(const std::vector<int64_t>& values, ElementType type) const;
  // Compares a part of what was received, which begins at `at`, with the codes of `sender`.
  void expect_moved(const Check& check, const at::Tensor& received, int64_t at, int64_t count,
                    int64_t sender, int64_t first = 0);
  void expect_reduced(const Check& check, const at::Tensor& received, int64_t first,
                      int64_t buffer);
  std::vector<WrongElement> compare(const at::Tensor& received,
                                    const std::vector<int64_t>& expected, ElementType type);
  bool is_evidence();

  const Suite& suite_;
  int64_t rank_, world_size_;
  std::string device_;
  ExchangeReport report_;
};

}  // namespace shardproof::sim::validate
