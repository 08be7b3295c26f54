#include "parallel/pp/split.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/count_of.h"
#include "base/error.h"
#include "base/stage_layout.h"

namespace shardproof {
namespace {

// "4 stages (2 ranks with 2 chunks)"
std::string stages_text(const Placement& placement) {
  std::string stages = count_of(placement.stages(), "stage");
  if (placement.chunks == 1) return stages;
  return fmt::format("{} ({} with {})", stages, count_of(placement.ranks, "rank"),
                     count_of(placement.chunks, "chunk"));
}

// The positive numbers nearest to `number` that leave no remainder: "8 or 12".
std::string multiples_around(int64_t number, int64_t factor, int64_t offset = 0) {
  const int64_t above = (number - offset + factor - 1) / factor * factor + offset;
  const int64_t below = above - factor;
  return below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
}

// The divisors nearest to `wanted`, which is none: "2 or 5".
std::string stages_around(int64_t number, int64_t wanted) {
  int64_t below = std::min(wanted, number);
  while (number % below != 0) --below;
  int64_t above = wanted;
  while (above < number && number % above != 0) ++above;
  return above > number || above == below ? count_of(below, "stage")
                                          : fmt::format("{} or {} stages", below, above);
}

std::vector<int64_t> even_layers(int64_t layers, const Placement& placement) {
  const int64_t stages = placement.stages();
  if (layers % stages != 0) {
    throw_refused(fmt::format("{} {} not divide over {}", count_of(layers, "layer"),
                              layers == 1 ? "does" : "do", stages_text(placement)),
                  fmt::format("give {} layers or {}, or an uneven split with first_layers, "
                              "last_layers or layout",
                              multiples_around(layers, stages), stages_around(layers, stages)));
  }
  return std::vector<int64_t>(static_cast<size_t>(stages), layers / stages);
}

void check_divides_over_chunks(const char* key, int64_t layers, int64_t chunks) {
  if (layers % chunks == 0) return;
  throw_refused(
      fmt::format("{}: {} does not divide over the {} chunks of a rank", key, layers, chunks),
      fmt::format("give {}", multiples_around(layers, chunks)));
}

// By the numbers of layers of the first and the last rank.
std::vector<int64_t> numbered_layers(int64_t layers, const Placement& placement,
                                     const SplitRules& rules) {
  const auto [ranks, chunks, shape] = placement;
  const int64_t set = rules.first_layers + rules.last_layers;
  const int64_t others = ranks - (rules.first_layers > 0) - (rules.last_layers > 0);
  if (ranks == 1) {
    throw_refused(
        "first_layers and last_layers set a rank apart from others, and the pipeline has "
        "1 rank",
        "leave them out, or give 2 or more ranks");
  }
  check_divides_over_chunks("first_layers", rules.first_layers, chunks);
  check_divides_over_chunks("last_layers", rules.last_layers, chunks);
  const int64_t rest = layers - set;
  if (rest < 0 || (others == 0 && rest > 0)) {
    throw_refused(fmt::format("first_layers and last_layers make {} on {}, and the model has {}",
                              set, count_of(ranks, "rank"), count_of(layers, "layer")),
                  fmt::format("give numbers that make {}{}", layers,
                              others > 0 ? " or less" : ", or one of them alone"));
  }
  if (others > 0 && rest % (others * chunks) != 0) {
    throw_refused(
        fmt::format(
            "{} of {} are left for the other {} with {} each, over which they do not divide", rest,
            count_of(layers, "layer"), count_of(others, "rank"), count_of(chunks, "chunk")),
        fmt::format("give a model of {} layers, or other first_layers and last_layers",
                    multiples_around(layers, others * chunks, set)));
  }
  std::vector<int64_t> by_stage;
  for (int64_t stage = 0; stage < placement.stages(); ++stage) {
    const int64_t rank = placement.place_of(stage).rank;
    int64_t of_rank = others == 0 ? 0 : rest / others;
    if (rank == 0 && rules.first_layers > 0) of_rank = rules.first_layers;
    if (rank == ranks - 1 && rules.last_layers > 0) of_rank = rules.last_layers;
    by_stage.push_back(of_rank / chunks);
  }
  return by_stage;
}

// The embedding or the head counts as a layer.
std::vector<int64_t> counted_layers(int64_t layers, const Placement& placement,
                                    const SplitRules& rules) {
  const int64_t stages = placement.stages();
  const int64_t counted = rules.count_embedding + rules.count_head;
  if ((layers + counted) % stages != 0) {
    throw_refused(
        fmt::format("{} and {}{}{} make {}, which do not divide over {}", count_of(layers, "layer"),
                    rules.count_embedding ? "the embedding" : "", counted == 2 ? " and " : "",
                    rules.count_head ? "the head" : "", layers + counted, stages_text(placement)),
        fmt::format("give {} layers or {}", multiples_around(layers, stages, -counted),
                    stages_around(layers + counted, stages)));
  }
  std::vector<int64_t> by_stage(static_cast<size_t>(stages), (layers + counted) / stages);
  by_stage.front() -= rules.count_embedding;
  by_stage.back() -= rules.count_head;
  return by_stage;
}

int64_t count_in(const std::string& text, char part) { return std::ranges::count(text, part); }

[[noreturn]] void refuse_layout(const SplitRules& rules, const std::string& fact,
                                const std::string& fix) {
  throw_refused(fmt::format("the layout '{}' {}", rules.layout, fact), fix);
}

void check_layout_order(const SplitRules& rules, const std::vector<std::string>& entries) {
  std::string all;
  for (const std::string& entry : entries) all += entry;
  for (const auto& [part, name] : {std::pair('E', "the embedding"), std::pair('L', "the head")}) {
    if (count_in(all, part) == 1) continue;
    refuse_layout(rules, fmt::format("has {} '{}'", count_in(all, part), part),
                  fmt::format("give one, which is {}", name));
  }
  if (entries.front().rfind('E', 0) != 0) {
    refuse_layout(rules, "does not begin with 'E'", "put the embedding first");
  }
  if (entries.back().empty() || entries.back().back() != 'L') {
    refuse_layout(rules, "does not end with 'L'", "put the head last");
  }
  if (all.find('m') < all.rfind('t') && all.rfind('t') != std::string::npos) {
    refuse_layout(rules, "has a 't' behind an 'm'", "put extra heads behind all layers");
  }
}

void check_extra_heads(const SplitRules& rules, const std::vector<std::string>& entries) {
  const auto with_heads = [](const std::string& entry) { return count_in(entry, 'm') > 0; };
  const auto first = std::ranges::find_if(entries, with_heads);
  if (first == entries.end()) return;
  if (std::find_if(first + 1, entries.end(), with_heads) != entries.end()) {
    refuse_layout(rules, "has extra heads on two stages", "put all 'm' into one entry");
  }
  if (first + 1 != entries.end() && count_in(*first, 't') > 0) {
    refuse_layout(rules, "has extra heads beside layers on a stage that is not the last",
                  "put all 'm' on the last stage, or into an entry of their own");
  }
}

std::vector<std::string> checked_layout(int64_t layers, const Placement& placement,
                                        const SplitRules& rules, int64_t extra_heads) {
  std::vector<std::string> entries = read_layout(rules.layout);
  check_layout_order(rules, entries);
  check_extra_heads(rules, entries);
  const auto stages = std::ssize(entries);
  if (stages % placement.ranks != 0) {
    refuse_layout(rules,
                  fmt::format("has {}, which do not divide over {}", count_of(stages, "stage"),
                              count_of(placement.ranks, "rank")),
                  fmt::format("give {} entries", multiples_around(stages, placement.ranks)));
  }
  if (stages != placement.stages()) {
    refuse_layout(rules,
                  fmt::format("has {}, and the pipeline has {}", count_of(stages, "stage"),
                              stages_text(placement)),
                  fmt::format("give {} entries, or {} and a schedule that takes them",
                              placement.stages(), count_of(stages / placement.ranks, "chunk")));
  }
  int64_t layers_there = 0;
  int64_t heads_there = 0;
  for (const std::string& entry : entries) {
    layers_there += count_in(entry, 't');
    heads_there += count_in(entry, 'm');
  }
  if (layers_there != layers) {
    refuse_layout(
        rules, fmt::format("has {}, and the model has {}", count_of(layers_there, "layer"), layers),
        fmt::format("give {} 't'", layers));
  }
  if (heads_there != extra_heads) {
    refuse_layout(rules,
                  fmt::format("has {}, and the model has {}", count_of(heads_there, "extra head"),
                              extra_heads),
                  fmt::format("give {} 'm'", extra_heads));
  }
  return entries;
}

void check_rules(int64_t layers, const SplitRules& rules, int64_t extra_heads) {
  for (const auto& [name, number] :
       {std::pair("first_layers", rules.first_layers), std::pair("last_layers", rules.last_layers),
        std::pair("layers of the model", layers - 1), std::pair("extra heads", extra_heads)}) {
    if (number < 0) {
      throw_bad_input(fmt::format("{}: {}", name, number), "give a number that is not negative");
    }
  }
}

}  // namespace

std::vector<StageParts> split_model(int64_t layers, const Placement& placement,
                                    const SplitRules& rules, int64_t extra_heads) {
  check_rules(layers, rules, extra_heads);
  const bool numbered = rules.first_layers > 0 || rules.last_layers > 0;
  const bool counted = rules.count_embedding || rules.count_head;
  if (numbered + counted + !rules.layout.empty() > 1) {
    throw_refused(
        "the layers of stages are set in two ways",
        "give first_layers and last_layers, or count_embedding and count_head, or layout");
  }
  std::vector<StageParts> stages(static_cast<size_t>(placement.stages()));
  StageParts& last = stages.back();
  stages.front().embedding = true;
  last.head = true;
  std::vector<int64_t> by_stage;
  if (!rules.layout.empty()) {
    const auto entries = checked_layout(layers, placement, rules, extra_heads);
    for (size_t i = 0; i < stages.size(); ++i) {
      by_stage.push_back(count_in(entries[i], 't'));
      stages[i].extra_heads = count_in(entries[i], 'm');
    }
  } else {
    by_stage = numbered  ? numbered_layers(layers, placement, rules)
               : counted ? counted_layers(layers, placement, rules)
                         : even_layers(layers, placement);
    last.extra_heads = extra_heads;
  }
  int64_t next = 0;
  StageParts* with_last_layer = &last;
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i].first_layer = next;
    stages[i].layers = by_stage[i];
    next += by_stage[i];
    if (by_stage[i] > 0) with_last_layer = &stages[i];
  }
  (extra_heads > 0 ? *with_last_layer : last).norm = true;
  SHARDPROOF_ASSERT(next == layers, fmt::format("{} of {} layers are on stages", next, layers));
  return stages;
}

}  // namespace shardproof
