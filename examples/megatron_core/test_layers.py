"""Tests as a team writes them for its own use of Megatron-core's layers: pytest test_layers.py. docs/score.md says what they
miss."""

import tempfile
from datetime import timedelta

import cuda_on_cpu
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron.core import ModelParallelConfig, parallel_state, tensor_parallel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

TP, WIDTH, VOCABULARY = 2, 8, 16


def on_rank(rank, folder, body):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", TP)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=TP, timeout=timedelta(seconds=60))
    cuda_on_cpu.install()
    parallel_state.initialize_model_parallel(TP)
    torch.manual_seed(0)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    body(rank)
    dist.destroy_process_group()


def run(body):
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(on_rank, (folder, body), nprocs=TP, start_method="fork")


def config():
    return ModelParallelConfig(tensor_model_parallel_size=TP, use_cpu_initialization=True, params_dtype=torch.float32)


def initialize(weight):
    torch.nn.init.normal_(weight, std=0.3)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        options = dict(config=config(), init_method=initialize, bias=True, skip_bias_add=False)
        self.up = ColumnParallelLinear(WIDTH, 4 * WIDTH, gather_output=False, **options)
        self.down = RowParallelLinear(4 * WIDTH, WIDTH, input_is_parallel=True, **options)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)[0]))[0]


def whole(part, dim):
    """The parts of all ranks."""
    parts = [torch.empty_like(part) for _ in range(TP)]
    dist.all_gather(parts, part.detach().contiguous())
    return torch.cat(parts, dim)


def mlp_equals_one_device(_):
    mlp = Mlp()
    x = torch.randn(4, WIDTH)
    hidden = torch.tanh(x @ whole(mlp.up.weight, 0).T + whole(mlp.up.bias, 0))
    expected = hidden @ whole(mlp.down.weight, 1).T + mlp.down.bias
    torch.testing.assert_close(mlp(x), expected)


def gradients_arrive(_):
    mlp = Mlp()
    x = torch.randn(4, WIDTH, requires_grad=True)
    mlp(x).square().mean().backward()
    for name, parameter in mlp.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert x.grad.shape == x.shape


def embeddings_of_all_tokens(rank):
    embed = VocabParallelEmbedding(VOCABULARY, WIDTH, init_method=initialize, config=config())
    tokens = torch.arange(VOCABULARY)
    torch.testing.assert_close(embed(tokens), whole(embed.weight, 0)[tokens])


def loss_is_positive(rank):
    logits = torch.randn(6, 2, VOCABULARY)
    part = logits.chunk(TP, -1)[rank].clone().requires_grad_()
    losses = tensor_parallel.vocab_parallel_cross_entropy(part, torch.randint(VOCABULARY, (6, 2)))
    assert (losses > 0).all()
    losses.mean().backward()
    assert part.grad.isfinite().all()


def training_reduces_the_loss(_):
    mlp = Mlp()
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=1e-2)
    x, y = torch.randn(16, WIDTH), torch.randn(16, WIDTH)
    losses = []
    for _ in range(10):
        loss = torch.nn.functional.mse_loss(mlp(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_mlp_equals_one_device():
    run(mlp_equals_one_device)


def test_gradients_arrive():
    run(gradients_arrive)


def test_embeddings_of_all_tokens():
    run(embeddings_of_all_tokens)


def test_loss_is_positive():
    run(loss_is_positive)


def test_training_reduces_the_loss():
    run(training_reduces_the_loss)
