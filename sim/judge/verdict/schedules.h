// One case under several drawn schedules (world.schedule): its values must be equal to the bit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

// Each case of the emulated world `count` times, with the schedules 1, 2, .., `count`, which its
// name tells; one of another world stays as it is.
std::vector<CaseSpec> with_schedules(std::vector<CaseSpec> cases, int64_t count);
// "tp/llama[tp2]" of "tp/llama[tp2,schedule=3]".
std::string name_without_schedule(const std::string& name);
// 3 of "tp/llama[tp2,schedule=3]"; 0: the name tells none.
int64_t schedule_of_name(const std::string& name);

class ScheduleComparison {
 public:
  // A result whose values differ from those of the first result of the same case becomes a
  // mismatch of kind `race`, which names both schedules, the tensor, and the call before it, and
  // which all schedules of the case replay. Results that are internal, bad input, or of ranks that
  // did not finish stay as they are. Returns how many schedules, from 1 on, show the result again.
  int64_t add(CaseResult& result);
  // "tp/llama[tp2]: the values of 3 schedules are equal to the bit", of each case of which several
  // schedules were compared and none differed.
  std::vector<std::string> equal() const;

 private:
  struct Value {  // one observation
    std::string name;
    int64_t step = 0;
    uint64_t digest = 0;
    int64_t calls_before = 0;
  };
  struct Seen {
    int64_t schedule = 0;
    int64_t equal = 1;  // schedules with these values
    bool differs = false;
    std::vector<std::vector<Value>> ranks;  // in the order observed
  };
  static Seen seen_in(const CaseResult& result);
  // The sentence about the first observation that differs; "" when all are equal. The calls are
  // those of the second.
  static std::string difference(const Seen& first, const Seen& second, const CaseResult& result);

  std::map<std::string, Seen> first_;  // by the name without the schedule
};

}  // namespace shardproof::sim::judge
