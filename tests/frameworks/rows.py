"""Fixes that frameworks really made: the function, the fixed piece of its text, and what stood there before."""

from dataclasses import dataclass


@dataclass
class Row:
    name: str
    source: str      # the issue, pull request or commit
    program: str     # a module of programs/
    settings: tuple  # functions of that module
    where: str       # the function; empty if the bug is in the installed version, and nobody has fixed it
    fixed: str
    broken: str
    sizes: dict      # the layout
    tensor: str      # a part of the name of the first wrong tensor
    explained: str   # a part of the explanation; empty if the cause is not named
    is_newer: bool = False  # the fix is newer than the installed version, and planted where it is due


FINALIZE = "megatron.core.distributed.finalize_model_grads:_allreduce_non_tensor_model_parallel_grads"
ROWS = [
    Row("a frozen linear layer does not sum its input's gradient", "Megatron-LM 5fffdfc737", "megatron",
        ("without_sequence_parallel", "frozen_linears"),
        "megatron.core.tensor_parallel.layers:LinearWithFrozenWeight.backward",
        "if ctx.allreduce_dgrad:", "if False:", dict(tp=2), "grad.decoder.layers.1.mlp.linear_fc1.layer_norm_weight",
        "the sum over tp is missing"),
    Row("the gathered logits' gradient is summed once more", "Megatron-LM 06e9f28b30, torchtitan PR 3822", "megatron",
        ("gathered_logits",), "megatron.core.tensor_parallel.mappings:_GatherFromModelParallelRegion.backward",
        "_split_along_last_dim(grad_output, ctx.group)",
        "_split_along_last_dim(_reduce(grad_output.contiguous(), ctx.group), ctx.group)", dict(tp=2),
        "grad.output_layer.weight", "2.00 x golden"),
    Row("norms of queries and keys are not summed", "NeMo-RL issue 3716, Megatron-LM issue 816", "megatron",
        ("without_sequence_parallel", "norms_of_queries_and_keys"), FINALIZE,
        'config.qk_layernorm and ("q_layernorm" in name or "k_layernorm" in name)', "False", dict(tp=2), "k_layernorm",
        "over tp is missing"),
    Row("norms of sequence parallelism are not summed", "NeMo-RL issue 3716", "megatron", (), FINALIZE,
        'config.sequence_parallel and getattr(param, "sequence_parallel", False)', "False", dict(tp=2), "layernorm",
        "over tp is missing"),
    Row("a router loses its mark of sequence parallelism", "Megatron-LM PR 619, issue 599", "megatron", ("experts",),
        "megatron.core.transformer.moe.router:Router.reset_parameters",
        "setattr(self.weight, 'sequence_parallel', self.config.sequence_parallel)",
        "setattr(self.weight, 'sequence_parallel', False)", dict(tp=2), "router", "over tp is missing"),
    Row("the balance of experts is scaled by the tokens of one rank of tp", "Megatron-LM PR 5047", "megatron",
        ("balance_of_tokens",),
        "megatron.core.transformer.moe.router:TopKRouter.attach_and_log_load_balancing_loss",
        "MoEAuxLossAutoScaler.apply(activation, aux_loss * num_tokens * self.tp_cp_group.size())",
        "MoEAuxLossAutoScaler.apply(activation, aux_loss * num_tokens)", dict(tp=2), "grad.decoder.layers.1.mlp.router.weight",
        "an auxiliary loss of the router (its balance, or a z-loss) has another weight",
        is_newer=True),
    Row("the balance of sequences depends on the size of a microbatch", "Megatron-LM PR 5798", "megatron",
        ("balance_of_sequences",), "megatron.core.transformer.moe.router:TopKRouter._apply_seq_aux_loss",
        "valid_token_count=local_num_tokens * bsz,", "valid_token_count=local_num_tokens,", dict(dp=2),
        "grad.decoder.layers.1.mlp.router.weight", "an auxiliary loss of the router (its balance, or a z-loss) has another weight",
        is_newer=True),
    Row("the sum of a transposed gradient is thrown away", "Megatron-LM PR 5338, 60f338a9cd", "megatron",
        ("without_sequence_parallel", "strided_head"), "megatron.core.tensor_parallel.mappings:_reduce",
        "input_ = input_.contiguous(); torch.distributed.all_reduce(input_, group=group)",
        "torch.distributed.all_reduce(input_.contiguous(), group=group)", dict(tp=2), "grad.decoder.final_layernorm",
        "over tp is missing", is_newer=True),
    Row("the loss is a mean over each part's own tokens", "transformers PR 34191", "transformers", ("uneven_rows",),
        "transformers.loss.loss_utils:fixed_cross_entropy",
        'reduction = "sum" if num_items_in_batch is not None else "mean"', 'reduction = "mean"', dict(dp=2), "loss",
        "is a mean over its own tokens, and these means are added"),
    Row("the Trainer does not count the other ranks' tokens", "transformers PR 34373", "transformers", ("by_trainer",),
        "transformers:Trainer._get_num_items_in_batch",
        "num_items_in_batch = self.accelerator.gather(num_items_in_batch.to(device)).sum()", "pass", dict(dp=2), "loss",
        "2.00 x golden"),
    Row("the Trainer counts tokens that no position predicts", "transformers PR 46204", "transformers", ("by_trainer",),
        "transformers:Trainer._get_num_items_in_batch", 'else batch["labels"][..., 1:]', 'else batch["labels"]', dict(dp=2),
        "loss", "divided by 16 where 15 are due"),
    Row("smooth labels are a mean over each rank's own tokens", "transformers PR 47261", "transformers",
        ("by_trainer_with_smooth_labels",), "transformers:Trainer.compute_loss",
        "self.label_smoother(outputs, labels, shift_labels=True, num_items_in_batch=num_items_in_batch)",
        "self.label_smoother(outputs, labels, shift_labels=True)", dict(dp=2), "loss", "2.00 x golden"),
    Row("the Trainer counts the ranks of tp as those of dp", "transformers PR 45994", "transformers", ("by_trainer",),
        "transformers:Trainer.compute_loss", "self.accelerator.num_processes // self.get_tp_size()",
        "self.accelerator.num_processes", dict(tp=2), "loss", "2.00 x golden"),
    Row("tokens count once for each rank of tp", "transformers issue 39648", "transformers", ("by_trainer",),
        "transformers:Trainer._get_num_items_in_batch", "self.get_tp_size() * self.get_cp_size() * self.get_sp_size()", "1",
        dict(tp=2), "loss", "0.5"),
    Row("the last microbatches are divided by the number of a whole step", "transformers PR 39659", "transformers",
        ("incomplete_accumulation",), "transformers:Trainer.training_step", "loss / self.current_gradient_accumulation_steps",
        "loss / self.args.gradient_accumulation_steps", dict(dp=2), "loss",
        "or a count of tokens or microbatches is off by that factor"),
    Row("the gradient of an addend is divided by the size of the mesh", "pytorch PR 115967", "pytorch", (),
        "torch.distributed.tensor._api:_FromTorchTensor.backward",
        "_normalize_placements_for_grad(\n        forward_input_placements\n    )", "forward_input_placements", dict(tp=2),
        "grad.layers.1.down", "0.5"),
    Row("the gradient of an addend is taken for addends", "pytorch PR 173454", "pytorch", ("dtensor_linears",),
        "torch.distributed.tensor._api:_ToTorchTensor.backward",
        "grad_placements = _normalize_placements_for_grad(dtensor_spec.placements)",
        "grad_placements = dtensor_spec.placements", dict(tp=2), "grad.layers.1.down",
        "what is summed over tp was whole already"),
    Row("a number of an earlier call is used again", "pytorch issue 153603", "pytorch", ("clamped",),
        "torch.distributed.tensor._dispatch:OpDispatcher.redistribute_local_args", "if use_val_from_redistribute_schema:",
        "if True:", dict(tp=2), "loss", ""),
    Row("FSDP on one rank divides gradients twice", "torch 2.11 and 2.14.1", "pytorch", ("experts",), "", "", "", dict(ep=2),
        "grad.layers.1.weight", "0.5"),
    Row("microbatches of an offloaded optimizer are lost", "DeepSpeed PR 7981", "deepspeed", (),
        "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.copy_grads_in_partition",
        "if self.micro_step_id > 0 or not self.is_gradient_accumulation_boundary():",
        "if self.gradient_accumulation_steps > 1:", dict(dp=2), "grad.head.weight", "a part of the batch does not count"),
    Row("the gradient of chunks of the loss is taken for whole", "torchtitan PR 3412", "torchtitan", (),
        "torchtitan.components.loss:GradAccumulator.result", "placements=self._placements,",
        "placements=[__import__('torch').distributed.tensor.Replicate()] * self._device_mesh.ndim,", dict(tp=2),
        "grad.norm.weight", ""),
    Row("heads of keys are repeated in another order", "verl PR 850", "verl", (), "verl_repeat_kv:repeat_kv",
        "hidden_states[:, :, :, None, :].expand(batch, slen, num_key_value_heads, n_rep, head_dim)",
        "hidden_states[:, :, None].expand(batch, slen, n_rep, num_key_value_heads, head_dim)", dict(sp=4), "loss", ""),
    Row("the gradient of a gathered loss is not scaled", "VeOmni PR 1120", "verl", (), "verl_ulysses:Gather.backward",
        "if ctx.grad_scaler:", "if False:", dict(sp=2), "grad.head.weight", "0.5"),
    Row("a mean of sums is not scaled for the mean over ranks", "verl PR 5366", "verl", ("mean_of_sums",),
        "verl_agg_loss:agg_loss", '/ global_batch_size * dp_size  # seq-mean\n        if loss_agg_mode',
        '/ global_batch_size  # seq-mean\n        if loss_agg_mode', dict(dp=2), "loss", "0.5"),
    Row("a mean of means is divided by the ranks twice", "verl PR 5798, of a line of PR 4510", "verl", ("mean_of_means",),
        "verl_agg_loss:agg_loss", "/ global_batch_size * dp_size  # seq-mean\n    else:",
        "/ (global_batch_size * dp_size)  # seq-mean\n    else:", dict(dp=2), "loss", "1 over the square of 2, the size of dp"),
]
