#include "collective/equal_parts.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace shardproof {

int64_t divide(int64_t value, int64_t parts, std::string_view what, std::string_view axis) {
  SHARDPROOF_ASSERT(parts > 0, "parts of which there is at least one");
  if (value % parts == 0) return value / parts;
  throw_refused(
      fmt::format("{} {} does not divide by the {} ranks of {}", what, value, parts, axis),
      fmt::format("pad it to {}, or choose a number of ranks that divides it",
                  ceil_divide(value, parts) * parts));
}

int64_t divide(int64_t value, const Communicator& axis, std::string_view what) {
  return divide(value, axis.size(), what, axis.axis());
}

}  // namespace shardproof
