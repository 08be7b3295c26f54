#include "sim/describe/token_strips.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "sim/world/rank/case_options.h"
#include "sim/world/rank/token_runs.h"
#include "train/held_tokens.h"

namespace shardproof::sim::describe {
namespace {

constexpr std::array<int, 8> kBackgrounds = {75,  215, 114, 174,
                                             141, 180, 80,  149};  // of 256 colors

// More than 52 samples share letters.
char letter_of(int64_t sample) {
  const auto at = sample % 52;
  return static_cast<char>(at < 26 ? 'A' + at : 'a' + at - 26);
}

std::string strip_of(const std::vector<world::TokenRun>& runs, bool color) {
  std::string strip;
  for (const world::TokenRun& run : runs) {
    const bool padding = run.sample < 0;
    const std::string tokens(static_cast<size_t>(run.count), padding ? '.' : letter_of(run.sample));
    const auto shade = static_cast<size_t>(std::max<int64_t>(run.sample, 0)) % kBackgrounds.size();
    strip += color && !padding
                 ? fmt::format("\x1b[30;48;5;{}m{}\x1b[0m", kBackgrounds[shade], tokens)
                 : tokens;
  }
  return strip;
}

// "A 0-1 6, B 0": the positions in their sequences, in the rank's order.
std::string words_of(const std::vector<world::TokenRun>& runs) {
  std::string words;
  int64_t last = -1;
  for (const world::TokenRun& run : runs) {
    if (run.sample < 0) continue;
    if (run.sample != last) {
      words += fmt::format("{}{}", words.empty() ? "" : ", ", letter_of(run.sample));
    }
    last = run.sample;
    words += run.count == 1 ? fmt::format(" {}", run.first)
                            : fmt::format(" {}-{}", run.first, run.first + run.count - 1);
  }
  return words.empty() ? "padding alone" : words;
}

// Lines whose labels have one width, up to a limit.
class Strips {
 public:
  Strips(bool color, int64_t most_columns, int64_t most_lines)
      : color_(color), most_columns_(most_columns), most_lines_(most_lines) {}

  void add(const std::string& label, const std::vector<world::TokenRun>& runs, bool with_words) {
    if (++lines_ > most_lines_) return;
    int64_t columns = 0;
    for (const world::TokenRun& run : runs) columns += run.count;
    const bool fits = columns <= most_columns_;
    text_ += fmt::format("  {:<26}{}{}\n", label, fits ? strip_of(runs, color_) : words_of(runs),
                         fits && with_words ? "   " + words_of(runs) : "");
  }
  std::string text() const {
    const int64_t more = lines_ - most_lines_;
    return more > 0 ? text_ + fmt::format("  .. and {} lines more\n", more) : text_;
  }

 private:
  bool color_;
  int64_t most_columns_, most_lines_, lines_ = 0;
  std::string text_;
};

// "cp 0 ulysses 1": coordinates on the axes that have more than one rank.
std::string place_of(const Mesh& mesh, int64_t rank, const std::vector<std::string>& axes) {
  std::string place;
  for (const std::string& axis : axes) {
    if (mesh.size(axis) == 1) continue;
    place += fmt::format("{}{} {}", place.empty() ? "" : " ", axis, mesh.coordinate(axis, rank));
  }
  return place;
}

void add_batch(Strips& strips, const Batch& batch) {
  const at::Tensor lengths = batch.input_lengths.to(at::kCPU, at::kLong);
  for (int64_t sample = 0; sample < batch.size(); ++sample) {
    const auto length = lengths[sample].item<int64_t>();
    std::vector<world::TokenRun> runs = {{sample, 0, length}};
    if (length < batch.seq_len()) runs.push_back({-1, 0, batch.seq_len() - length});
    strips.add(fmt::format("sample {}", sample), runs, /*with_words=*/false);
  }
}

// Adds the rows of one share of the samples: each row whole, then cut.
void add_rows(Strips& strips, const Mesh& mesh, const std::vector<int64_t>& ranks,
              const Batch& batch, const TokenCuts& cuts, const TrainOptions& options) {
  std::vector<std::vector<HeldTokens>> held;
  for (const int64_t rank : ranks) held.push_back(held_tokens(batch, mesh, rank, cuts, options));
  const std::string share = place_of(mesh, ranks.front(), cuts.sample_axes);
  for (size_t micro = 0; micro < held.front().size(); ++micro) {
    const auto rows = world::token_runs(held.front()[micro].rows, batch.seq_len());
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::string where = fmt::format("microbatch {} row {}", micro, row);
      strips.add(share.empty() ? where : share + " " + where, rows[row],
                 /*with_words=*/ranks.size() == 1);
      if (ranks.size() == 1) continue;
      for (size_t i = 0; i < ranks.size(); ++i) {
        strips.add("  " + place_of(mesh, ranks[i], cuts.position_axes(mesh)),
                   world::token_runs(held[i][micro].held, batch.seq_len())[row],
                   /*with_words=*/true);
      }
    }
  }
}

}  // namespace

std::string token_strips(const CaseSpec& spec, const Batch& batch, bool color, int64_t most_columns,
                         int64_t most_lines) {
  const Mesh mesh = spec.parallel.mesh();
  const TokenCuts cuts = make_styles(world::parallel_options(spec.parallel)).token_cuts(mesh);
  const bool whole = cuts.position_axes(mesh).empty();
  if (whole && spec.batching.kind == BatchingKind::kFixed) return "";
  const TrainOptions options = world::train_options(spec);
  Strips strips(color, most_columns, most_lines);
  add_batch(strips, batch);
  std::set<int64_t> parts;
  std::map<int64_t, std::vector<int64_t>> shares;  // of the samples: a rank for each part of a row
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    if (!parts.insert(coordinate_of(mesh, cuts.token_axes(mesh), rank)).second) continue;
    shares[coordinate_of(mesh, cuts.sample_axes, rank)].push_back(rank);
  }
  for (const auto& [share, ranks] : shares) add_rows(strips, mesh, ranks, batch, cuts, options);
  return "who holds which token: a letter for each sample, . for padding, then positions\n" +
         strips.text();
}

}  // namespace shardproof::sim::describe
