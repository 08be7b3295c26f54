// Options of a whole case, of its batch and of its expected result.
#include <algorithm>

#include "sim/case/needs.h"

namespace shardproof::sim {
namespace {

using enum KeyType;
using enum Flag::Of;
using enum Flag::Replay;
constexpr NotDrawn kExpectsMatch{"a drawn case is expected to match"};

// The keys outside of all blocks, and members without a key.
OptionRows<CaseSpec> general_rows() {
  using Spec = CaseSpec;
  constexpr auto ignores = Golden::kIgnores;
  return {
      key<CaseSpec>("name", kText, nullptr, "Name of the scenario; default: the file's name",
                    NotDrawn{"a label"}),
      row<&Spec::workload>(
          "workload",
          "What a rank runs: train, logprobs, policy, or the name of a registered workload"),
      row<&Spec::options>("options", "Options of a registered workload; `describe` shows them",
                          NotDrawn{"those of registered workloads are drawn one by one"}),
      row<&Spec::precision>("precision", "Type of weights and activations",
                            Flag{"--precision", kEveryCommand}),
      row<&Spec::seed>("seed", "Seed of weights, batch and all other draws", Range{0, kMaxSeed},
                       Flag{"--seed", kEveryCommand, kWhenGiven}),
      row<&Spec::judged>("judged", "false: run without a comparison, and say that it is not judged",
                         ignores, NotDrawn{"without a comparison nothing is proven"}),
      row<&Spec::record_activations>(
          "record_activations", "false: compare gradients, parameters, losses and logprobs only"),
      row<&Spec::sample_rows>("sample_rows",
                              "Rows of each tensor's first dim that the golden holds and ranks are "
                              "compared on, drawn from the seed; 0: all",
                              Range{0, 1e9}, Flag{"--sample-rows"}),
      row<&Spec::tags>("tags",
                       "Words for --filter; cases tagged slow or manual run only with --all or "
                       "when selected by tag, name or file",
                       ignores, NotDrawn{"a label"}),
      member<&Spec::name>(ignores),
      member<&Spec::file>(ignores),
      member<&Spec::line>(ignores),
      member<&Spec::model>(),
      member<&Spec::weights_folder>(),
      member<&Spec::expected_file>(ignores),
      member<&Spec::skip>(ignores),
      member<&Spec::idle_keys>(ignores),
      member<&Spec::dump_file>(ignores),
      member<&Spec::save_folder>(ignores),
      member<&Spec::scratch_folder>(ignores),
      row<&Spec::save_file_bytes>("", "Largest file of --save, in bytes", Range{1, 1e18}, ignores,
                                  Flag{"--save-file-bytes", kCheck, kNever}),
  };
}

OptionRows<CaseSpec> run_rows() {
  using Spec = CaseSpec;
  constexpr auto ignores = Golden::kIgnores;
  constexpr Range samples{1, 1e6};
  return {
      row<&Spec::steps>("run.steps", "Optimizer steps, each on the same batch", Range{1, 100000},
                        Flag{"--steps", kEveryCommand, kWhenGiven},
                        all_of(workload(ModelWorkload::kTrain))),
      key<CaseSpec>("run.stages", kRecords, nlohmann::json::array(),
                    "policy: the stages in order: [{do: train}, {do: score}, ..]",
                    all_of(workload(ModelWorkload::kPolicy))),
      member<&Spec::stages>(),
      row<&Spec::refit_bytes>("run.refit.budget_bytes",
                              "policy: bytes of full tensors that a refit holds at a time",
                              Range{1, 1e15}, ignores, all_of(stage(StageKind::kRefit))),
      row<&Spec::lives>(
          "run.lives",
          "policy: number of times that all stages run in one process, each time from the start",
          Range{1, 100}, all_of(workload(ModelWorkload::kPolicy))),
      key<CaseSpec>("run.train_global_batch_size", kInteger, nullptr,
                    "Same as data.batch_size; policy: samples of an optimizer step, a divisor of "
                    "data.batch_size",
                    samples, either(trains(), any_of(workload(ModelWorkload::kLogprobs)))),
      row<&Spec::micro_batch_size>("run.train_micro_batch_size",
                                   "Samples of a dp rank's microbatch; default: its whole share",
                                   samples, ignores, Default::kFollows, ShortName{"mbs"},
                                   Flag{"--microbatch,--micro-batch"}, trains()),
      key<CaseSpec>("run.logprob_batch_size", kInteger, nullptr,
                    "Samples of a dp rank's microbatch when logprobs are scored", samples,
                    scores_or_refers()),
      member<&Spec::batching>(ignores),
      member<&Spec::loss_scale>(),
      row<&Spec::noise_std>(
          "run.noise_std",
          "train: standard deviation of normal noise on every weight before the first step",
          Range{0, kMaxConstant}, all_of(workload(ModelWorkload::kTrain))),
      row<&Spec::fused_norm>("run.scoring.fused_norm",
                             "logprobs: a residual's addition and the norm behind it take one pass",
                             ignores, all_of(workload(ModelWorkload::kLogprobs))),
      row<&Spec::frozen>("run.frozen",
                         "Patterns (*, ?) of parameters that are not trained: they have neither a "
                         "gradient nor optimizer state",
                         trains()),
      member<&Spec::loss>(),
      member<&Spec::side_losses>(),
      member<&Spec::selection_bias>(),
      member<&Spec::capacity>(),
      row<&Spec::replays_routes>(
          "run.experts.replay",
          "policy: a train stage sends each token to the experts that the last score stage chose",
          ShortName{"replay"}, with_experts(all_of(stage(StageKind::kTrain))), kOfExperts),
      row<&Spec::colocated>(
          "run.generation.colocated.enabled",
          "policy: a refit goes through the host's shared memory instead of a broadcast", ignores,
          all_of(stage(StageKind::kRefit))),
      member<&Spec::optimizer>(),
      member<&Spec::parallel>(ignores),
  };
}

void append(OptionRows<CaseSpec>& rows, const OptionRows<CaseSpec>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

// The position of a key's block in the table, in the order of a scenario file.
size_t place_of(const CaseOption& option) {
  static const std::vector<std::string> blocks = {"model",     "parallel", "data",   "run",
                                                  "reference", "world",    "faults", "expect"};
  const std::string block = option.path.substr(0, option.path.find_first_of(".["));
  const auto found = std::ranges::find(blocks, block);
  return found == blocks.end() ? 0 : 1 + static_cast<size_t>(found - blocks.begin());
}

void collect(const OptionRows<CaseSpec>& rows, std::vector<CaseOption>& options) {
  for (const CaseOption& row : rows) {
    if (row.type != kNone) options.push_back(row);
    collect(row.inside, options);
  }
}

}  // namespace

const OptionRows<CaseSpec>& rows_of(const CaseSpec&) {
  using Spec = CaseSpec;
  static const OptionRows<CaseSpec> rows = [] {
    OptionRows<CaseSpec> all = general_rows();
    append(all, model_keys());
    append(all, {row<&Spec::init>(
                    "model.init",
                    "own_stream: each tp rank draws its parts of matrices from a stream of its "
                    "own, so that the weights depend on tp; master: all cut the same weights",
                    any_of(workload(ModelWorkload::kTrain), workload(ModelWorkload::kLogprobs)))});
    append(all, run_rows());
    append(all, {
                    member<&Spec::data>(),
                    row<&Spec::backends>(
                        "world.backend", "The only backends for this scenario; default: all",
                        Choices{known_backends()}, Default::kFollows, Golden::kIgnores,
                        NotDrawn{"it is --backend of the command"}),
                    member<&Spec::reference>(Golden::kIgnores),
                    member<&Spec::world>(Golden::kIgnores),
                    row<&Spec::faults>("faults", "Faults that are planted at run time",
                                       Golden::kIgnores, kExpectsMatch),
                    member<&Spec::expect>(Golden::kIgnores),
                });
    return all;
  }();
  return rows;
}

const OptionRows<DataSpec>& rows_of(const DataSpec&) {
  using Spec = DataSpec;
  constexpr Range size{1, kMaxSize};
  static const OptionRows<DataSpec> rows = {
      key<DataSpec>(
          "data.case", kText, nullptr,
          "Case folder with model, weights, batch, loss and optimizer; relative to the scenario",
          NotDrawn{"a folder brings its own model, data and optimizer"}),
      member<&Spec::file>(),
      row<&Spec::batch_size>("data.batch_size",
                             "B, samples of the global batch; default: the number of lengths, or 4",
                             Range{1, 1e6}, Default::kFollows),
      row<&Spec::seq_len>("data.sequence_length",
                          "S, length of the padded batch; default: the greatest length, or 16",
                          size, Default::kFollows, ShortName{"seq"}),
      row<&Spec::lengths>("data.lengths", "Tokens of each sample; default: all S", size,
                          Default::kFollows),
      row<&Spec::mask_probability>(
          "data.token_mask_probability",
          "Share of tokens that the loss counts; above 0 at least one does", Range{0, 1}, trains()),
      row<&Spec::mask_weights>(
          "data.token_mask_weights",
          "Counted tokens have weights of 0.25 to 2 in token_mask instead of 1", trains()),
      row<&Spec::masked_not_finite>("data.masked_not_finite",
                                    "Advantages, previous and reference logprobs are NaN, "
                                    "infinite or huge where the loss mask is 0",
                                    either(with({"run.loss.kind", "clipped_pg"}, trains()),
                                           with({"run.loss.kind", "preference"}, trains()))),
      row<&Spec::dropped_samples>("data.dropped_samples", "Samples whose sample_mask is 0",
                                  Range{0, 1e6}, trains()),
      row<&Spec::uneven>("data.uneven", "Allow a global batch that dp does not divide",
                         Golden::kIgnores, Effect::kOnlyAllows, all_of(dp())),
      row<&Spec::huge_advantage_sample>(
          "data.huge_advantage.sample",
          "Sample whose advantages are multiplied, for example to overflow float16; -1: none",
          Range{-1, 1e6}, with({"run.loss.kind", "clipped_pg"}, trains())),
      row<&Spec::huge_advantage_factor>(
          "data.huge_advantage.factor", "Factor of the advantages of data.huge_advantage.sample",
          Range{-1e30, 1e30}, all_of(Needed{"data.huge_advantage.sample", 0, -1.0})),
      row<&Spec::read_by>("data.read_by",
                          "first_of_tp: the first rank of each tp group reads the batch and "
                          "broadcasts it to the others",
                          Golden::kIgnores, all_of(tp())),
  };
  return rows;
}

const OptionRows<ExpectSpec>& rows_of(const ExpectSpec&) {
  using Spec = ExpectSpec;
  static const OptionRows<ExpectSpec> rows = {
      row<&Spec::verdict>("expect.verdict", "Expected verdict",
                          Choices{{"match", "mismatch", "refused", "failed"}}, ShortName{"expect"},
                          kExpectsMatch),
      row<&Spec::kind>("expect.kind", "Expected kind of the verdict; \"\": any",
                       Choices{{"values", "replicas", "missing", "metrics", "digest", "schedule",
                                "race", "never_waited", "in_flight", "deadlock", "disagreement",
                                "died", "hung", "threw", "refused"}},
                       kExpectsMatch),
      row<&Spec::tensor>("expect.tensor", "Expected first divergent tensor; \"\": any",
                         kExpectsMatch),
      row<&Spec::detector>("expect.detector",
                           "Detector that is expected to see the error first; \"\": any",
                           Choices{{"values", "replicas", "norm", "census", "digest", "matching",
                                    "watchdog", "process", "exception"}},
                           kExpectsMatch),
      row<&Spec::message>("expect.message",
                          "A part of the expected message (why ranks refuse, what one threw); "
                          "\"\": any",
                          kExpectsMatch),
      row<&Spec::collectives>("expect.collectives",
                              "Expected collectives: {axis: {op: count on each rank}}",
                              kExpectsMatch),
      row<&Spec::nothing_counted>("expect.nothing_counted",
                                  "true: a match in which no token counts, so that the loss and "
                                  "all gradients are 0, is meant; "
                                  "false: it is bad input",
                                  kExpectsMatch),
  };
  return rows;
}

const std::vector<CaseOption>& case_options() {
  static const std::vector<CaseOption> options = [] {
    std::vector<CaseOption> all;
    collect(rows_of(CaseSpec{}), all);
    std::ranges::stable_sort(
        all, [](const CaseOption& a, const CaseOption& b) { return place_of(a) < place_of(b); });
    return all;
  }();
  return options;
}

}  // namespace shardproof::sim
