// Splits of a model against lists written by hand, and what is refused.
#include "parallel/pp/split.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>

#include "base/stage_layout.h"
#include "tests/support/said_by.h"

namespace shardproof::tests {
namespace {

constexpr auto kLoop = Placement::Shape::kLoop;
constexpr auto kV = Placement::Shape::kV;

// Stages separated by "|": E, the numbers of the layers, N the final norm, m, L.
std::string split_text(const std::vector<StageParts>& stages) {
  std::vector<std::string> texts;
  for (const StageParts& stage : stages) {
    std::vector<std::string> parts;
    if (stage.embedding) parts.push_back("E");
    for (int64_t i = 0; i < stage.layers; ++i) {
      parts.push_back(fmt::format("{}", stage.first_layer + i));
    }
    if (stage.norm) parts.push_back("N");
    for (int64_t i = 0; i < stage.extra_heads; ++i) parts.push_back("m");
    if (stage.head) parts.push_back("L");
    texts.push_back(fmt::format("{}", fmt::join(parts, " ")));
  }
  return fmt::format("{}", fmt::join(texts, "|"));
}

struct Case {
  int64_t layers;
  Placement placement;
  SplitRules rules;
  std::string split;
  int64_t extra_heads = 0;
};

void check_all(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    INFO(each.split);
    const auto stages = split_model(each.layers, each.placement, each.rules, each.extra_heads);
    CHECK(split_text(stages) == each.split);
    int64_t next = 0;
    for (const StageParts& stage : stages) {
      if (stage.layers > 0) CHECK(stage.first_layer == next);
      next += stage.layers;
    }
    CHECK(next == each.layers);
  }
}

void check_all_refused(const std::vector<Case>& cases, ErrorKind kind = ErrorKind::kRefused) {
  for (const Case& each : cases) {
    const auto split = [&] {
      split_model(each.layers, each.placement, each.rules, each.extra_heads);
    };
    CHECK(told_by(kind, split) == each.split);
  }
}

SplitRules numbers(int64_t first, int64_t last) { return {first, last, false, false, ""}; }
SplitRules counted(bool embedding, bool head) { return {0, 0, embedding, head, ""}; }
SplitRules layout(const std::string& text) { return {0, 0, false, false, text}; }

// What is refused of a layout of a model of `layers`, behind "the layout '<text>' ".
struct BadLayout {
  std::string text;
  std::string problem;
  int64_t layers = 2;
  int64_t extra_heads = 0;
  int64_t ranks = 2;
};

void check_layouts_refused(const std::vector<BadLayout>& cases) {
  for (const BadLayout& each : cases) {
    const auto split = [&] {
      split_model(each.layers, {each.ranks, 1, kLoop}, layout(each.text), each.extra_heads);
    };
    CHECK(told_by(ErrorKind::kRefused, split) ==
          fmt::format("the layout '{}' {}", each.text, each.problem));
  }
}

TEST_CASE("even splits", "[pp]") {
  check_all({
      {1, {1, 1, kLoop}, {}, "E 0 N L"},
      {3, {1, 1, kLoop}, {}, "E 0 1 2 N L"},
      {2, {2, 1, kLoop}, {}, "E 0|1 N L"},
      {8, {2, 2, kLoop}, {}, "E 0 1|2 3|4 5|6 7 N L"},
      {8, {2, 2, kV}, {}, "E 0 1|2 3|4 5|6 7 N L"},
      {6, {3, 2, kLoop}, {}, "E 0|1|2|3|4|5 N L"},
      {6, {1, 3, kLoop}, {}, "E 0 1|2 3|4 5 N L"},
      // Extra heads are on the last stage.
      {4, {2, 1, kLoop}, {}, "E 0 1|2 3 N m m L", 2},
  });
}

TEST_CASE("splits by numbers of layers of the first and the last rank", "[pp]") {
  check_all({
      {4, {2, 1, kLoop}, numbers(3, 1), "E 0 1 2|3 N L"},
      {4, {2, 1, kLoop}, numbers(3, 0), "E 0 1 2|3 N L"},
      {4, {2, 1, kLoop}, numbers(0, 3), "E 0|1 2 3 N L"},
      {7, {3, 1, kLoop}, numbers(1, 0), "E 0|1 2 3|4 5 6 N L"},
      {7, {3, 1, kLoop}, numbers(0, 1), "E 0 1 2|3 4 5|6 N L"},
      {8, {4, 1, kLoop}, numbers(1, 1), "E 0|1 2 3|4 5 6|7 N L"},
      {9, {4, 1, kLoop}, numbers(3, 2), "E 0 1 2|3 4|5 6|7 8 N L"},
      // Two chunks: rank 0 has 2 layers, one in each chunk, and the others 4.
      {10, {3, 2, kLoop}, numbers(2, 0), "E 0|1 2|3 4|5|6 7|8 9 N L"},
      {10, {3, 2, kLoop}, numbers(0, 2), "E 0 1|2 3|4|5 6|7 8|9 N L"},
      {8, {2, 2, kLoop}, numbers(6, 2), "E 0 1 2|3|4 5 6|7 N L"},
      // In a V rank 0 has the first and the last stage.
      {10, {3, 2, kV}, numbers(2, 0), "E 0|1 2|3 4|5 6|7 8|9 N L"},
      {10, {3, 2, kV}, numbers(0, 2), "E 0 1|2 3|4|5|6 7|8 9 N L"},
      // All layers are on two of three ranks.
      {4, {3, 1, kLoop}, numbers(2, 2), "E 0 1||2 3 N L"},
      {5, {2, 1, kLoop}, numbers(4, 0), "E 0 1 2 3|4 N m L", 1},
  });
}

TEST_CASE("splits in which the embedding or the head counts as a layer", "[pp]") {
  check_all({
      {7, {4, 1, kLoop}, counted(true, false), "E 0|1 2|3 4|5 6 N L"},
      {7, {4, 1, kLoop}, counted(false, true), "E 0 1|2 3|4 5|6 N L"},
      {6, {4, 1, kLoop}, counted(true, true), "E 0|1 2|3 4|5 N L"},
      {6, {2, 2, kLoop}, counted(true, true), "E 0|1 2|3 4|5 N L"},
      {6, {2, 2, kV}, counted(true, true), "E 0|1 2|3 4|5 N L"},
      {3, {4, 1, kLoop}, counted(true, false), "E|0|1|2 N L"},
      {2, {4, 1, kLoop}, counted(true, true), "E|0|1|N L"},
      {1, {3, 1, kLoop}, counted(true, true), "E|0|N L"},
      // With extra heads the final norm is behind the last layer.
      {2, {4, 1, kLoop}, counted(true, true), "E|0|1 N|m L", 1},
      {5, {1, 1, kLoop}, counted(true, true), "E 0 1 2 3 4 N L"},
  });
}

TEST_CASE("splits by a layout", "[pp]") {
  check_all({
      {8, {2, 2, kLoop}, layout("Ett|(tt|)*2ttL"), "E 0 1|2 3|4 5|6 7 N L"},
      {2, {2, 1, kLoop}, layout("Et|tL"), "E 0|1 N L"},
      {5, {2, 1, kLoop}, layout("Et|t*4,L"), "E 0|1 2 3 4 N L"},
      {6, {4, 1, kLoop}, layout("E|(t*3|)*2L"), "E|0 1 2|3 4 5|N L"},
      {4, {3, 2, kLoop}, layout("E|t|t||tt|L"), "E|0|1||2 3|N L"},
      {4, {2, 3, kV}, layout("Et*2|||t|t|L"), "E 0 1|||2|3|N L"},
      {3, {2, 2, kLoop}, layout("E|*3tttL"), "E|||0 1 2 N L"},
      {3, {3, 1, kLoop}, layout("Et|tt|mL"), "E 0|1 2 N|m L", 1},
      {3, {4, 1, kLoop}, layout("Et|tt|mm|L"), "E 0|1 2 N|m m|L", 2},
      {4, {2, 1, kLoop}, layout("Ett|ttmmL"), "E 0 1|2 3 N m m L", 2},
      {4, {1, 1, kLoop}, layout("EttttL"), "E 0 1 2 3 N L"},
      // The example of Megatron-LM's parser.
      {61,
       {16, 2, kLoop},
       layout("Ettt|(tt|)*29,m|L"),
       "E 0 1 2|3 4|5 6|7 8|9 10|11 12|13 14|15 16|17 18|19 20|21 22|23 24|25 26|27 28|29 30|31 32|"
       "33 34|35 36|37 38|39 40|41 42|43 44|45 46|47 48|49 50|51 52|53 54|55 56|57 58|59 60 N|m|L",
       1},
  });
}

TEST_CASE("layers that do not divide are refused with sizes that do", "[pp]") {
  const std::string uneven = ", or an uneven split with first_layers, last_layers or layout";
  const std::string two_ways =
      "the layers of stages are set in two ways; give first_layers and last_layers, or "
      "count_embedding and count_head, or layout";
  const Placement one{1, 1, kLoop}, two{2, 1, kLoop}, three{3, 1, kLoop}, four{4, 1, kLoop};
  const Placement chunked{2, 2, kLoop};
  check_all_refused({
      {10,
       chunked,
       {},
       "10 layers do not divide over 4 stages (2 ranks with 2 chunks); give 8 or 12 layers or "
       "2 or 5 stages" +
           uneven},
      {3, four, {}, "3 layers do not divide over 4 stages; give 4 layers or 3 stages" + uneven},
      {1, two, {}, "1 layer does not divide over 2 stages; give 2 layers or 1 stage" + uneven},
      {8, three, numbers(1, 0),
       "7 of 8 layers are left for the other 2 ranks with 1 chunk each, over which they do not "
       "divide; give a model of 7 or 9 layers, or other first_layers and last_layers"},
      {8, chunked, numbers(3, 0),
       "first_layers: 3 does not divide over the 2 chunks of a rank; give 2 or 4"},
      {8, chunked, numbers(0, 1),
       "last_layers: 1 does not divide over the 2 chunks of a rank; give 2"},
      {8, two, numbers(3, 4),
       "first_layers and last_layers make 7 on 2 ranks, and the model has 8 layers; give numbers "
       "that make 8, or one of them alone"},
      {4, three, numbers(5, 0),
       "first_layers and last_layers make 5 on 3 ranks, and the model has 4 layers; give numbers "
       "that make 4 or less"},
      {4, one, numbers(4, 0),
       "first_layers and last_layers set a rank apart from others, and the pipeline has 1 rank; "
       "leave them out, or give 2 or more ranks"},
      {6, four, counted(true, false),
       "6 layers and the embedding make 7, which do not divide over 4 stages; give 3 or 7 layers "
       "or 1 or 7 stages"},
      {8, chunked, counted(true, true),
       "8 layers and the embedding and the head make 10, which do not divide over 4 stages (2 "
       "ranks with 2 chunks); give 6 or 10 layers or 2 or 5 stages"},
      {8, two, {4, 0, true, false, ""}, two_ways},
      {2, two, {1, 0, false, false, "Et|tL"}, two_ways},
  });
  check_all_refused(
      {
          {4, two, numbers(-1, 0), "first_layers: -1; give a number that is not negative"},
          {4, two, {}, "extra heads: -1; give a number that is not negative", -1},
      },
      ErrorKind::kBadInput);
}

TEST_CASE("layouts that do not fit are refused", "[pp]") {
  check_layouts_refused({
      {"t|tL", "has 0 'E'; give one, which is the embedding"},
      {"EtE|tL", "has 2 'E'; give one, which is the embedding"},
      {"Et|t", "has 0 'L'; give one, which is the head"},
      {"EtL|tL", "has 2 'L'; give one, which is the head"},
      {"tE|tL", "does not begin with 'E'; put the embedding first"},
      {"|EttL", "does not begin with 'E'; put the embedding first"},
      {"Et|Lt", "does not end with 'L'; put the head last"},
      {"EttL|", "does not end with 'L'; put the head last"},
      {"Et|mtL", "has a 't' behind an 'm'; put extra heads behind all layers", 2, 1},
      {"Ett|m|m|L", "has extra heads on two stages; put all 'm' into one entry", 2, 2, 4},
      {"Ettm|L",
       "has extra heads beside layers on a stage that is not the last; put all 'm' on the last "
       "stage, or into an entry of their own",
       2, 1},
      {"Et|t|L", "has 3 stages, which do not divide over 2 ranks; give 2 or 4 entries"},
      {"E|t|t|L",
       "has 4 stages, and the pipeline has 2 stages; give 2 entries, or 2 chunks and a schedule "
       "that takes them"},
      {"Et|tL", "has 2 layers, and the model has 3; give 3 't'", 3},
      {"Et|tmL", "has 1 extra head, and the model has 0; give 0 'm'"},
      {"Et|tL", "has 0 extra heads, and the model has 2; give 2 'm'", 2, 2},
  });
}

TEST_CASE("the text of a layout", "[pp]") {
  const auto entries = [](const std::string& text) {
    return fmt::format("{}", fmt::join(read_layout(text), "/"));
  };
  CHECK(entries("Et|(t|)*2L") == "Et/t/t/L");
  // The examples of Megatron-LM's parser, in its parts.
  CHECK(entries("Et(tt|mm|L)*2,E") == "Ettt/mm/Ltt/mm/LE");
  CHECK(entries("(tt)*3") == "tttttt");
  CHECK(entries("tt,(t|)*2") == "ttt/t/");
  CHECK(entries("(|tt)*2,E") == "/tt/ttE");
  CHECK(entries("") == "");
  CHECK(entries("|*2") == "//");
  const std::string known = "; known are E, t, m, L, | and (..)*N, as in Ett|(tt|)*2ttL";
  const std::vector<std::pair<std::string, std::string>> unreadable = {
      {"Et|x", "'x' is unknown at position 3" + known},
      {"E t", "' ' is unknown at position 1" + known},
      {"*2", "'*' is unknown at position 0" + known},
      {"(tt", "a ')' is missing at position 3; give each '(' a ')' behind it"},
      {"tt)*2", "')' closes nothing at position 2; give each ')' a '(' before it"},
      {"(tt)L", "a '*' is missing behind ')' at position 4; give (..)*N"},
      {"((t)*2)*2", "'(' inside of another '(' at position 1; write the inner repetition out"},
      {"t*", "a number of 1 or more is missing behind '*' at position 2; give t*3 or (tt|)*2"},
      {"t*0L", "a number of 1 or more is missing behind '*' at position 3; give t*3 or (tt|)*2"},
      {"t*99999999999999999999", "more than 100000 parts at position 8; repeat less often"},
      {"(t*9999)*99", "more than 100000 parts at position 11; repeat less often"},
  };
  for (const auto& [text, message] : unreadable) {
    CHECK(told_by(ErrorKind::kBadInput, [&] { read_layout(text); }) ==
          fmt::format("the layout '{}': {}", text, message));
  }
}

}  // namespace
}  // namespace shardproof::tests
