// A finding as text and as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/count_of.h"
#include "sim/uses/logprobs/compare.h"

namespace shardproof::sim::logprobs {
namespace {

struct Words {
  const char *word, *paint, *name;
};

Words words_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kEqual:
      return {"EQUAL", "32", "equal"};
    case Verdict::kNoise:
      return {"NOISE", "32", "noise"};
    case Verdict::kNotCompared:
      return {"NOT COMPARED", "33", "not_compared"};
    default:
      return {"DIFFERENT", "31;1", "different"};
  }
}

std::string line(const char* label, const std::string& text) {
  return text.empty() ? "" : fmt::format("\n  {:<9} {}", label, text);
}

std::string headline(const Finding& finding) {
  switch (finding.verdict) {
    case Verdict::kEqual:
      return "all are equal to the bit";
    case Verdict::kNoise:
      return "they are equal within noise of " + finding.dtype;
    default:
      if (!finding.non_finite.empty()) return "some values are not finite";
      if (!finding.values.empty()) return "they differ, and one file holds no logprobs";
      if (finding.claims.empty()) return "they differ by more than noise, and no cause is known";
      return "they differ, and the cause is known: " + finding.claims.front().cause;
  }
}

std::string token_text(const Token& token) {
  std::string text = fmt::format("row {}, position {}", token.row, token.position);
  if (token.id >= 0) text += fmt::format(", token {}", token.id);
  return text + fmt::format(" (A {:.6g}, B {:.6g})", token.a, token.b);
}

std::string size_text(const Finding& finding) {
  if (finding.compared == 0) return "";
  const Token& token = finding.largest;
  return fmt::format("median {:.3g}, largest {:.3g} at {}", finding.median,
                     std::abs(token.b - token.a), token_text(token));
}

std::string first_text(const Finding& finding) {
  if (!finding.first) return "";
  std::string text =
      fmt::format("the first wrong token is at {}, and the lowest wrong position of any row is {}",
                  token_text(*finding.first), finding.lowest_position);
  return text + fmt::format("; a wrong token differs by more than {:.2g} of 1 + |logprob|",
                            finding.wrong_above);
}

// What the claim explains, and what remains.
std::string explained(const Claim& claim, const Finding& finding) {
  const double percent = 100 * claim.share;
  std::string text = claim.place
                         ? fmt::format("; {:.4g}% of the squared difference is there", percent)
                         : fmt::format("; explains {:.4g}% of the squared difference", percent);
  if (claim.leaves_noise) text += ", and the rest is noise of " + finding.dtype;
  if (claim.unsaid > 0 && !claim.place) {
    text += fmt::format("; it says nothing of {} of {} tokens", claim.unsaid, finding.compared);
  }
  return text;
}

nlohmann::ordered_json json_of(const Token& token) {
  nlohmann::ordered_json json{{"difference", std::abs(token.b - token.a)},
                              {"row", token.row},
                              {"position", token.position},
                              {"a", token.a},
                              {"b", token.b}};
  if (token.id >= 0) json["token"] = token.id;
  return json;
}

nlohmann::ordered_json json_of(const Claim& claim) {
  nlohmann::ordered_json json{{"cause", claim.cause},
                              {"text", claim.text},
                              {"likely", claim.likely},
                              {"explained", claim.share},
                              {"rest_is_noise", claim.leaves_noise},
                              {"nats", claim.score()}};
  if (claim.unsaid > 0) json["says_nothing_of"] = claim.unsaid;
  if (!claim.place) return json;
  json["wrong_above"] = claim.place->limit;
  json["inside"] = {{"wrong", claim.place->wrong_inside}, {"tokens", claim.place->inside}};
  json["outside"] = {{"right", claim.place->right_outside}, {"tokens", claim.place->outside}};
  return json;
}

nlohmann::ordered_json json_of(const RouteClass& one) {
  return {{"tokens", one.tokens},
          {"mean", one.mean},
          {"largest", one.largest},
          {"is_noise", one.is_noise}};
}

nlohmann::ordered_json json_of(const Routes& routes, const std::optional<RouteSplit>& split) {
  if (!routes.only.empty()) return {{"not_compared", routes.only}};
  nlohmann::ordered_json json{{"positions", routes.compared},
                              {"elsewhere", routes.elsewhere},
                              {"layers", routes.layers},
                              {"in_layers", routes.in_layers}};
  if (routes.first) {
    const Reroute& first = *routes.first;
    json["first"] = {{"row", first.row},
                     {"position", first.position},
                     {"layer", first.layer},
                     {"a", first.from_a},
                     {"b", first.from_b}};
  }
  if (!routes.rule.empty()) json["rule"] = routes.rule;
  if (split) {
    json["split"] = {{"elsewhere", json_of(split->elsewhere)},
                     {"behind", json_of(split->behind)},
                     {"equal", json_of(split->equal)}};
  }
  return json;
}

nlohmann::ordered_json json_of(const Finding& finding) {
  const char* verdict = words_of(finding.verdict).name;
  if (finding.verdict == Verdict::kNotCompared) {
    return {{"files", finding.name}, {"verdict", verdict}, {"problem", finding.problem}};
  }
  nlohmann::ordered_json json{{"files", finding.name},
                              {"verdict", verdict},
                              {"tokens", finding.compared},
                              {"dtype", finding.dtype},
                              {"above_noise", finding.above_noise}};
  if (finding.compared > 0) {
    json["median"] = finding.median;
    json["largest"] = json_of(finding.largest);
  }
  if (finding.first) {
    json["first_wrong"] = json_of(*finding.first);
    json["lowest_wrong_position"] = finding.lowest_position;
    json["wrong_above"] = finding.wrong_above;
  }
  if (!finding.non_finite.empty()) json["non_finite"] = finding.non_finite;
  if (!finding.left_out.empty()) json["left_out"] = finding.left_out;
  if (!finding.unread.empty()) json["not_read"] = finding.unread;
  if (!finding.values.empty()) json["values"] = finding.values;
  if (finding.routes) json["routes"] = json_of(*finding.routes, finding.split);
  json["causes"] = nlohmann::ordered_json::array();
  for (const Claim& claim : finding.claims) json["causes"].push_back(json_of(claim));
  if (!finding.without_cause.empty()) {
    json["without_cause"] = finding.without_cause;
    json["possible"] = finding.possible;
  }
  return json;
}

}  // namespace

std::string describe(const Finding& finding, bool color) {
  const Words words = words_of(finding.verdict);
  std::string text = fmt::format("{:<9}", words.word);
  if (color) text = fmt::format("\033[{}m{}\033[0m", words.paint, text);
  if (finding.verdict == Verdict::kNotCompared) return text + " " + finding.problem;
  text += fmt::format(" {}: {} compared, {}", finding.name, count_of(finding.compared, "token"),
                      headline(finding));
  text += line("size", size_text(finding));
  text += line("first", first_text(finding));
  text += line("finite", finding.non_finite);
  text += line("left out", finding.left_out);
  text += line("not read", finding.unread);
  if (finding.routes) text += line("routes", routes_text(*finding.routes));
  if (finding.split) text += line("split", split_text(*finding.split));
  text += line("values", finding.values);
  if (!finding.claims.empty()) {
    const Claim& best = finding.claims.front();
    text += line("cause", best.text + explained(best, finding));
    text += line("likely", best.likely);
  }
  for (size_t i = 1; i < finding.claims.size(); ++i) {
    text += line("or", finding.claims[i].text + explained(finding.claims[i], finding));
  }
  text += line("cause", finding.without_cause);
  return text + line("possible", finding.possible);
}

std::string to_json(const std::vector<Finding>& findings) {
  auto list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) list.push_back(json_of(finding));
  return list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace shardproof::sim::logprobs
