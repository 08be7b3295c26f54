// The two kinds of failure. A user can cause an Error (the fact with its numbers, then the fix).
// Only a bug in shardproof can fail a SHARDPROOF_ASSERT, which is on in every build.
#pragma once

#include <stdexcept>
#include <string>

namespace shardproof {

enum class ErrorKind {
  kBadInput,  // wrong on every mesh: syntax, unknown key, malformed data. Exit status 2.
  kRefused,  // valid, but this mesh, option combination or architecture is not supported. Status 4.
  kFailed,   // the world failed: a collective was aborted, a peer died, a deadlock. Status 3.
};

class Error : public std::runtime_error {
 public:
  struct Parts {
    ErrorKind kind;
    std::string what;       // the fact, with its numbers
    std::string fix;        // what the reader can do
    std::string code = {};  // for kFailed: died, hung, threw, deadlock, disagreement, ...
  };
  explicit Error(Parts parts)
      : std::runtime_error(parts.fix.empty() ? parts.what : parts.what + "; " + parts.fix),
        parts_(std::move(parts)) {}

  ErrorKind kind() const { return parts_.kind; }
  const std::string& fact() const { return parts_.what; }
  const std::string& fix() const { return parts_.fix; }
  const std::string& code() const { return parts_.code; }

 private:
  Parts parts_;
};

// Throw an Error of that kind.
[[noreturn]] void throw_bad_input(std::string what, std::string fix);
[[noreturn]] void throw_refused(std::string what, std::string fix);
[[noreturn]] void throw_failed(std::string what, std::string fix, std::string code = {});

// A bug in shardproof. Exit status 5.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_assertion(const char* condition, const char* file, int line,
                                 const std::string& message);

size_t edit_distance(const std::string& a, const std::string& b);
// The name in `known` nearest to `word` by edit distance, or "" when none is near.
template <class Names>
std::string nearest_name(const std::string& word, const Names& known) {
  std::string best;
  size_t best_distance = word.size() / 2 + 2;
  for (const auto& name : known) {
    const size_t distance = edit_distance(word, std::string(name));
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(name);
    }
  }
  return best;
}

}  // namespace shardproof

#define SHARDPROOF_ASSERT(condition, message)                                                \
  do {                                                                                       \
    if (!(condition)) ::shardproof::fail_assertion(#condition, __FILE__, __LINE__, message); \
  } while (false)
