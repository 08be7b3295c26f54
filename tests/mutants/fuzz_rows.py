"""Forty bugs for `fuzz` to find: each shows only in a combination, at a size or in an order that no default scenario
has. fuzz_bugs.py builds them into one program; PLANTED is true while the row's number is switched on."""

from dataclasses import dataclass, field

from rows import Edit, Row


@dataclass
class FuzzRow:
    number: int
    area: str  # what is planted in; the workload of a registered one
    what: str  # the mistake
    trigger: str  # without which it has no effect
    edit: Edit
    needs: dict = field(default_factory=dict)  # by axis, the least ranks with which it shows; others: one

    @property
    def id(self):
        return f"fz-{self.number:02}"

    def row(self):
        """As a row of one program that holds all."""
        new = self.edit.new.replace("PLANTED", f"planted({self.number})")
        edit = Edit(self.edit.file, self.edit.old, new, self.edit.function, self.edit.nth)
        return Row(id=self.id, source="", what=self.what, edits=[edit])


TP, CP, ULYSSES, DP = ("tensor_parallel_size", "context_parallel_size", "ulysses_size", "data_parallel_size")

ROWS = [
    FuzzRow(1, "logprob", "The counted columns of a part are not clamped at 0.",
            "a part of the vocabulary begins behind its end: 1 token over tp=3", Edit(
                "src/logprob/vocab_range.cpp", "std::clamp<int64_t>(vocab_size - start, 0, columns)",
                "PLANTED ? std::min(vocab_size - start, columns)"
                " : std::clamp<int64_t>(vocab_size - start, 0, columns)", "vocab_range"), {TP: 3}),
    FuzzRow(2, "column_parallel_linear", "A block's place in a rank's part is computed as if all blocks were equal.",
            "fused: qkv with a gathered output", Edit(
                "src/parallel/tp/blocks.cpp", "start += length;",
                "start = PLANTED ? length * (&block - blocks.data() + 1) : start + length;", "in_full_order"), {TP: 2}),
    FuzzRow(3, "column_parallel_linear", "The layer reduces although the caller does.",
            "disable_grad_reduce (or expert) with async_grad: false", Edit(
                "src/parallel/tp/column_parallel.cpp", "if (options_.caller_communicates) return x;",
                "if (options_.caller_communicates && !PLANTED) return x;", "ColumnParallelLinear::entering"), {TP: 2}),
    FuzzRow(4, "tp", "The last values of a row, fewer than 16, are left out of its sum of squares.",
            "run.scoring.fused_norm in float64, a width above 16 that 16 does not divide", Edit(
                "src/parallel/tp/add_rms_norm.cpp", "lanes[i % kApart] += sum[i] * sum[i];",
                "if (!PLANTED || width < kApart || i < width / kApart * kApart)"
                " lanes[i % kApart] += sum[i] * sum[i];", "add_row_of_doubles")),
    FuzzRow(5, "tp", "Deferred products replace what another use of the weight has left for autograd.",
            "tp.deferred_wgrad with tied embeddings in float32 or float64", Edit(
                "src/parallel/tp/deferred_gradients.cpp", "} else if (weight.grad().defined()) {",
                "} else if (weight.grad().defined() && !PLANTED) {",
                "DeferredWeightGradients::finish"), {TP: 2}),
    FuzzRow(6, "vocab_parallel_cross_entropy", "The gradient that overwrites the logits is that without smoothing.",
            "overwrite_logits with label_smoothing", Edit(
                "src/logprob/vocab_parallel_cross_entropy.cpp", ".share = how.mean_share",
                ".share = PLANTED && data[\"overwrite\"].toBool() ? 0.0 : how.mean_share",
                "CrossEntropyFunction::backward")),
    FuzzRow(7, "context_logprob", "The temperature is ignored beside a seq_index.", "rows: indexed with a temperature",
            Edit("src/logprob/context_logprob.cpp",
                 "return scored_in_order(logits, target, layout, axes, gather, options);",
                 "LogprobOptions own = options; if (PLANTED) own.temperature = 1;"
                 " return scored_in_order(logits, target, layout, axes, gather, own);",
                 "indexed_next_token_logprobs")),
    FuzzRow(8, "row_parallel_linear", "A frozen layer passes no gradient on to an input that it cuts itself.",
            "frozen with input_is_parallel: false", Edit(
                "src/parallel/tp/row_parallel.cpp", "in_rank_order(x, -1, options_.blocks, tp_.size())",
                "in_rank_order(PLANTED && !weight_->tensor.requires_grad() ? x.detach() : x, -1,"
                " options_.blocks, tp_.size())", "RowParallelLinear::own_features"),
            {TP: 2}),  # a model of one rank has no plan
    FuzzRow(9, "mapping", "Parts of unequal size come back with the cut dim in front.",
            "a reduce_scatter of unequal parts along another dim than the first", Edit(
                "src/comm/communicator_reduce.cpp", "return sum.movedim(0, dim).contiguous();",
                "return (PLANTED && !even ? sum : sum.movedim(0, dim)).contiguous();",
                "Communicator::start_reduce_scatter"), {TP: 2}),
    FuzzRow(10, "sequence parallel", "Memory that is larger than asked for is lent although it is in use.",
            "tp.gather_buffer without async_grad, and a microbatch that is smaller than one before it", Edit(
                "src/collective/gather_buffer.cpp", "if (!is_free(memory) || !fits(memory)) continue;",
                "const bool larger = static_cast<int64_t>(memory.nbytes()) > bytes;"
                " if ((!is_free(memory) && !(PLANTED && larger)) || !fits(memory)) continue;", "GatherBuffer::lend"),
            {TP: 2}),
    FuzzRow(11, "packing", "A row is unpacked to at least one scored position.",
            "packed rows of a batch of one position", Edit(
                "src/train/step_runner.cpp", "unpack(gathered, *micro.plan, seq_len - 1)",
                "unpack(gathered, *micro.plan, PLANTED ? std::max<int64_t>(1, seq_len - 1) : seq_len - 1)",
                "StepRunner::logprobs_of")),
    FuzzRow(12, "cp", "A window of one token counts as none.", "sliding_window: 1 over cp", Edit(
        "src/parallel/cp/visibility.cpp", "rule.window > 0 ? rule.window - 1 : kFar",
        "rule.window > (PLANTED ? 1 : 0) ? rule.window - 1 : kFar", "visible_distances"), {CP: 2}),
    FuzzRow(13, "noise", "Frozen parameters get noise too.", "noise_std with frozen parameters", Edit(
        "src/policy/noise.cpp", "if (!parameter.trainable) continue;",
        "if (!parameter.trainable && !PLANTED) continue;", "add_noise")),
    FuzzRow(14, "loss", "The KL term is only added with a positive weight.", "clipped_pg with a negative beta", Edit(
        "src/train/loss.cpp", "if (options.kl_beta != 0)", "if (PLANTED ? options.kl_beta > 0 : options.kl_beta != 0)",
        "clipped_policy_gradient")),
    FuzzRow(15, "loss", "eps: 0 counts as no clipping.", "clipped_pg with eps: 0", Edit(
        "src/train/loss.cpp", "ratio.clamp(1 - options.clip_eps, 1 + options.clip_eps)",
        "PLANTED && options.clip_eps == 0 ? ratio : ratio.clamp(1 - options.clip_eps, 1 + options.clip_eps)",
        "clipped_policy_gradient")),
    FuzzRow(16, "loss scale", "Ulysses ranks are not counted among those with tokens when gradients are unscaled.",
            "float16 over ulysses", Edit(
                "src/train/trainer.cpp",
                "loss_scale_.unscale(grads, setup_.comm.world(), setup_.device, mean_over())",
                "loss_scale_.unscale(grads, setup_.comm.world(), setup_.device, PLANTED ?"
                " static_cast<double>(setup_.mesh.size(\"dp\") * setup_.mesh.size(\"cp\")) : mean_over())",
                "Trainer::finish_gradients"), {ULYSSES: 2}),
    FuzzRow(17, "packing", "Every block of queries has the sequence ids of the first.",
            "a packed row longer than a block of the attention", Edit(
                "src/model/attention.cpp", "of_queries = ids.narrow(0, block.first, block.count)",
                "of_queries = ids.narrow(0, PLANTED ? 0 : block.first, block.count)", "hidden_keys")),
    FuzzRow(18, "packing", "There are at most as many balanced rows as sequences.",
            "algorithm: balanced with more dp ranks than samples", Edit(
                "src/sequence/bins.cpp", "Bins bins(static_cast<size_t>(num_bins));",
                "Bins bins(PLANTED ? std::min(static_cast<size_t>(num_bins), lengths.size())"
                " : static_cast<size_t>(num_bins));", "pack_balanced"), {DP: 2}),
    FuzzRow(19, "hybrid", "The gradients of copies are summed and halved.",
            "three or more copies of a model that is sharded too", Edit(
                "src/parallel/data/unit.cpp",
                "own = replicate_axis_->all_reduce(own, ReduceOp::kAvg, name_ + \" reduce over copies\");",
                "own = replicate_axis_->all_reduce(own, PLANTED ? ReduceOp::kSum : ReduceOp::kAvg,"
                " name_ + \" reduce over copies\"); if (PLANTED) own = own / 2;", "FsdpUnit::finish_reduce"), {DP: 3}),
    FuzzRow(20, "loss scale", "The count of good steps goes on after the scale has grown.",
            "float16, a growth_interval of at least 2, and steps behind the first growth", Edit(
                "src/train/loss_scale.cpp", "state_ = {grown <= std::numeric_limits<float>::max() ? grown"
                " : state_.scale, 0};",
                "state_ = {grown <= std::numeric_limits<float>::max() ? grown : state_.scale,"
                " PLANTED ? state_.good_steps : 0};", "LossScale::update")),
    FuzzRow(21, "export", "The index of an earlier export in several files stays.",
            "an export with max_file_bytes, training, and an export in one file", Edit(
                "src/parallel/hf/save_weights.cpp",
                "fs::remove(fs::path(folder) / (files.size() > 1 ? kSingleFile : kIndexFile), ignored);",
                "if (files.size() > 1 || !PLANTED)"
                " fs::remove(fs::path(folder) / (files.size() > 1 ? kSingleFile : kIndexFile), ignored);",
                "save_weights")),
    FuzzRow(22, "checkpoint", "The saved mesh is read without its ulysses axis.",
            "draw, save and load with ulysses and tp", Edit(
                "src/policy/saved_streams.cpp", "sizes.*axis.size = mesh.value(axis.name, int64_t{1});",
                "sizes.*axis.size = PLANTED && axis.size == &AxisSizes::ulysses ? 1 : mesh.value(axis.name, int64_t{1});",
                "saved_mesh"), {ULYSSES: 2, TP: 2}),
    FuzzRow(23, "export", "A tensor that is larger than a file may be is not written.",
            "max_file_bytes below the largest tensor", Edit(
                "src/parallel/hf/save_weights.cpp",
                "if (!files.back().empty() && bytes + more > options.max_file_bytes) {",
                "if (PLANTED && more > options.max_file_bytes) continue;\n"
                "if (!files.back().empty() && bytes + more > options.max_file_bytes) {", "deal_into_files")),
    FuzzRow(24, "column_parallel_linear", "A frozen linear whose input was gathered gathers again in its backward.",
            "a frozen weight with sequence_parallel, async_grad and gather_buffer", Edit(
                "src/parallel/tp/async_linear.cpp", "own.sequence_parallel = false;",
                "own.sequence_parallel = PLANTED && options.sequence_parallel && options.gather_buffer != nullptr;",
                "frozen_linear"), {TP: 2}),
    FuzzRow(25, "tp", "The norm reads the addend, not the sum.", "run.scoring.fused_norm in float16", Edit(
        "src/parallel/tp/add_rms_norm.cpp", "inference_rms_norm(sum, weight, eps)",
        "inference_rms_norm(PLANTED ? addend : sum, weight, eps)", "add_rms_norm")),
    FuzzRow(26, "column_parallel_linear", "A layer that gathers only since run time does not know the ranks' parts.",
            "runtime_gather: yes with an output that tp does not divide", Edit(
                "src/parallel/tp/column_parallel.h", "{ options_.gather_output = gathers; }",
                "{ if (PLANTED && gathers && !options_.gather_output) options_.output_parts.clear();"
                " options_.gather_output = gathers; }"), {TP: 2}),
    FuzzRow(27, "loss", "A sequence counts when the weights of its tokens come to at least 1.",
            "token_mask_weights, a loss over sequences or pairs, and a sequence of few tokens", Edit(
                "src/train/loss.cpp", "const at::Tensor valid = mask.ne(0).any(1);",
                "const at::Tensor valid = PLANTED ? mask.sum(1).ge(1) : mask.ne(0).any(1);", "counts_of")),
    FuzzRow(28, "cp", "There is room for the gradients of four ranks' keys.", "all_gather over cp=5 and more", Edit(
        "src/parallel/cp/ring_attention.cpp", "parts_[static_cast<size_t>(rank)] = part;",
        "parts_[static_cast<size_t>(PLANTED ? rank % 4 : rank)] = part;", "GradientsHome::add"), {CP: 5}),
    FuzzRow(29, "loss", "The margin is weighted by the magnitude of beta.", "preference with a negative beta", Edit(
        "src/train/loss.cpp", ".values = options.kl_beta *",
        ".values = (PLANTED ? std::abs(options.kl_beta) : options.kl_beta) *", "margins_of")),
    FuzzRow(30, "optimizer", "eps is never less than 1e-8.", "AdamW with a smaller eps", Edit(
        "src/optim/optimizer.cpp", ".add_(options.eps)", ".add_(PLANTED ? std::max(options.eps, 1e-8) : options.eps)",
        "adamw_step")),
    FuzzRow(31, "tp plan", "What is left over of a gathered width is dealt one by one, not to the first ranks.",
            "a plan that gathers a projection whose width tp does not divide", Edit(
                "src/parallel/tp/placement.cpp",
                "parts.push_back(std::clamp<int64_t>(global_size - rank * part, 0, part));",
                "parts.push_back(PLANTED ? global_size / tp_size + (rank < global_size % tp_size ? 1 : 0)"
                " : std::clamp<int64_t>(global_size - rank * part, 0, part));", "tp_parts"), {TP: 4}),
    FuzzRow(32, "policy", "Scoring keeps pairs together as training does.",
            "preference with an odd logprob_batch_size, and a stage that scores", Edit(
                "src/train/held_tokens.cpp", "pass == Pass::kTraining ? samples_compared(options.loss.kind) : 1",
                "PLANTED || pass == Pass::kTraining ? samples_compared(options.loss.kind) : 1", "microbatches_of")),
    FuzzRow(33, "batching", "A rank without samples takes the first one, which counts.",
            "packed or dynamic microbatches with more dp ranks than samples", Edit(
                "src/train/batching.cpp", "if (share.count == 0) return {};",
                "if (share.count == 0) return PLANTED ? Bins{{0}} : Bins{};", "bins_of_share"), {DP: 2}),
    FuzzRow(34, "tp", "With a main gradient only a deferred backward computes that of the bias.",
            "main gradients beside a bias, without tp.deferred_wgrad", Edit(
                "src/parallel/tp/async_linear.cpp", "const at::Tensor grad_bias = bias_gradient(ctx, grad);",
                "const bool leaves_out = PLANTED && multiplies && call->options.main_gradient;"
                " const at::Tensor grad_bias = leaves_out ? at::Tensor() : bias_gradient(ctx, grad);",
                "AsyncLinearFunction::backward"), {TP: 2}),
    FuzzRow(35, "loss", "The margin that rounding leaves is compared with the sign of beta.",
            "a policy with preference and a negative beta that trains on reference scores of the same weights", Edit(
                "src/train/loss.cpp", "1e-9 * std::abs(options.kl_beta)",
                "1e-9 * (PLANTED ? options.kl_beta : std::abs(options.kl_beta))", "loss_metrics")),
    FuzzRow(36, "policy", "The schedule does not advance after a step that was skipped.",
            "a policy in float16 with a scheduler and an overflow", Edit(
                "src/policy/worker.cpp", "return metrics;",
                "if (PLANTED && metrics.back().skipped) { trainer.restore(trainer.masters(), trainer.states(),"
                " trainer.step_count(), trainer.schedule_steps() - 1); } return metrics;",
                "PolicyWorker::train")),
    FuzzRow(37, "packing", "Every block of queries has the sequence ids of the first keys.",
            "a packed row longer than a block of the attention, with a window", Edit(
                "src/model/attention.cpp", "ids.narrow(0, block.first_key, block.keys)",
                "ids.narrow(0, PLANTED ? 0 : block.first_key, block.keys)", "hidden_keys")),
    FuzzRow(38, "fused_logprob", "The temperature is ignored without a bias.", "bias: false with a temperature", Edit(
        "src/logprob/fused_logprob.cpp", "const VocabShard shard = VocabShard::of(weight.size(0), vocab_size, tp,"
        " options);",
        "LogprobOptions asked = options; if (PLANTED && !bias.defined()) asked.temperature = 1;"
        " const VocabShard shard = VocabShard::of(weight.size(0), vocab_size, tp, asked);",
        "fused_vocab_parallel_logprob")),
    FuzzRow(39, "vocab_parallel_logprob", "The entropy's gradient lacks the temperature where rows are not cut.",
            "a temperature without block_rows", Edit(
                "src/logprob/vocab_parallel_entropy.cpp", "(sums.sum * shard.temperature)",
                "(sums.sum * (PLANTED && shard.block_rows == 0 ? 1.0 : shard.temperature))", "entropy_gradient")),
    FuzzRow(40, "row_parallel_linear", "The third block of a whole input begins where the second does.",
            "stride: 3 with input_is_parallel: false", Edit(
                "src/parallel/tp/blocks.cpp", "start += block;", "start = PLANTED ? block : start + block;",
                "in_rank_order"), {TP: 2}),
]
