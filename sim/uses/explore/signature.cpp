#include "sim/uses/explore/signature.h"

#include <fmt/format.h>

#include <regex>

namespace shardproof::sim::explore {

namespace {

constexpr const char* kBeforeCause = ": ";

// "every element is 2.00 x golden on ranks 0, 1" -> "every element is # x golden".
std::string without_numbers(const std::string& text) {
  static const std::regex number(R"(-?\b[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?\b)");
  static const std::regex list(R"(#(,( (and )?)?#|-#| to #| and #)+)");
  static const std::regex plural(R"(\branks\b)");
  std::string plain = std::regex_replace(text, number, "#");
  plain = std::regex_replace(plain, list, "#");
  static const std::regex places("wrong only at .*");  // which a smaller tensor may not have
  plain = std::regex_replace(plain, places, "wrong only at places");
  return std::regex_replace(plain, plural, "rank");
}

// Without the ranks that hold what is wrong, and their place on an axis: a smaller mesh has fewer.
std::string without_holders(const std::string& text) {
  static const std::regex holders(
      R"( on (all ranks|the one rank|ranks? [0-9]+((, and |, | and | to |-)[0-9]+)*))"
      R"(( only)?( \([^)]*\))?)");
  return std::regex_replace(text, holders, "");
}

// "ranks 2, 3: all_gather tp[0,1] 'k_proj forward': rank 3 has size 4" -> "all_gather tp[0,1] rank
// 3 has size 4": in a smaller world all ranks may say so, and of several layers that fail another
// one may be the first.
std::string without_speakers(const std::string& text) {
  static const std::regex speakers(R"(^ranks? [0-9]+(, [0-9]+)*( and [0-9]+ more)?: )");
  static const std::regex label(R"(\] '[^']*':?)");
  return std::regex_replace(std::regex_replace(text, speakers, ""), label, "]");
}

// The sentence up to its first detail.
std::string first_clause(const std::string& text) {
  return text.substr(0, text.find_first_of(":;(\n"));
}

}  // namespace

std::string failure_signature(const judge::CaseResult& result) {
  if (result.verdict == Verdict::kMatch) return "";
  std::string signature = fmt::format("{} {}", result.verdict, result.kind);
  if (result.divergence) {
    const judge::Divergence& found = *result.divergence;
    const std::string& cause = found.likely.empty() ? found.pattern : found.likely;
    return fmt::format("{} {}{}{}", signature, without_numbers(found.tensor), kBeforeCause,
                       without_numbers(first_clause(without_holders(cause))));
  }
  // The message of another verdict names ranks and calls; of an exception it is what was thrown.
  const bool says = result.kind == ResultKind::kThrew || result.kind == ResultKind::kInternal ||
                    result.verdict == Verdict::kRefused || result.verdict == Verdict::kBadInput;
  return says ? signature + " " + without_numbers(first_clause(without_speakers(result.message)))
              : signature;
}

std::string without_cause(const std::string& signature) {
  return signature.substr(0, signature.find(kBeforeCause));
}

std::string failure_text(const judge::CaseResult& result) {
  return fmt::format("{} ({}): {}", result.verdict, result.kind, result.message);
}

}  // namespace shardproof::sim::explore
