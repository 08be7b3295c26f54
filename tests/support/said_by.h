// What a call says in its Error, for tests; without assertions, since ranks call it on their
// threads.
#pragma once

#include <string>

#include "base/error.h"

namespace shardproof::tests {

// The kind and text of an Error, "refused: .."; "" if nothing is thrown.
template <class Call>
std::string said_by(const Call& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    const std::string kind = error.kind() == ErrorKind::kRefused    ? "refused: "
                             : error.kind() == ErrorKind::kBadInput ? "bad input: "
                                                                    : "failed: ";
    return kind + error.what();
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace shardproof::tests
