// Tables as text: "F0 F1' B0" is the forward of microbatch 0 in chunk 0, that of microbatch 1 in
// chunk 1, and the backward of microbatch 0 in chunk 0.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/pipeline_schedules.h"
#include "parallel/pp/tables.h"

namespace shardproof::tests {

inline std::string text_of(const Action& action) {
  constexpr const char* kKinds[] = {"F", "B", "W"};
  return fmt::format("{}{}{}", kKinds[static_cast<size_t>(action.kind)], action.microbatch,
                     std::string(static_cast<size_t>(action.chunk), '\''));
}

inline std::string text_of(const std::vector<Action>& actions) {
  std::vector<std::string> texts;
  for (const Action& action : actions) texts.push_back(text_of(action));
  return fmt::format("{}", fmt::join(texts, " "));
}

inline std::string text_of(const Pipeline& pipeline, int64_t microbatches) {
  return fmt::format("{} p={} v={} m={} N={}", pipeline.schedule, pipeline.ranks, pipeline.chunks,
                     microbatches, pipeline.group);
}

// Every pipeline of up to 4 ranks, 3 chunks and 9 microbatches that the schedules take, each group
// that a schedule with groups takes included.
inline void each_pipeline(const std::function<void(const Pipeline&, int64_t)>& check) {
  for (const ScheduleTraits& traits : kScheduleTraits) {
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      for (int64_t chunks = 1; chunks <= 3; ++chunks) {
        for (int64_t microbatches = 1; microbatches <= 9; ++microbatches) {
          const bool groups = traits.groups && chunks > 1;
          for (int64_t group = 0; group <= (groups ? microbatches : 0); ++group) {
            const Pipeline pipeline{traits.schedule, ranks, chunks, group};
            try {
              check_microbatches(pipeline, microbatches);
            } catch (const Error&) {
              continue;
            }
            check(pipeline, microbatches);
          }
        }
      }
    }
  }
}

}  // namespace shardproof::tests
