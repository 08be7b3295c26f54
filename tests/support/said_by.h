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

// The text of an Error of this kind that says a fix; "" if nothing is thrown.
template <class Call>
std::string told_by(ErrorKind kind, const Call& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    const bool is_right = error.kind() == kind && !error.fix().empty();
    return is_right ? error.what() : "an Error of another kind, or without a fix";
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace shardproof::tests
