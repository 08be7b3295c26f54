#include "base/error.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace shardproof {

void throw_bad_input(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = std::move(what), .fix = std::move(fix)});
}

void throw_refused(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kRefused, .what = std::move(what), .fix = std::move(fix)});
}

void throw_failed(std::string what, std::string fix, std::string code) {
  throw Error({.kind = ErrorKind::kFailed,
               .what = std::move(what),
               .fix = std::move(fix),
               .code = std::move(code)});
}

void fail_assertion(const char* condition, const char* file, int line, const std::string& message) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": " + message +
                      " (violated: " + condition + ")");
}

// An inserted, deleted or replaced letter costs 1, and so does a swap of neighbors (the "optimal
// string alignment" distance): float46 is as near to float64 as to float16.
size_t edit_distance(const std::string& a, const std::string& b) {
  // Of a's first i-2, i-1 and i letters.
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace shardproof
