"""What one rank does with a model: loads it, saves it, infers, and trains one step, recorded."""

import json
import resource
import time
import traceback

import torch

from .. import lift
from ..global_batch import batch, current
from ..golden import StartParameters
from ..names import named_parameters
from . import plan, weights
from .recipe import Recipe, is_of_transformers, plain

ROWS, LENGTH, TOKENS = 8, 12, 30
RATE = 1e-2
ACTIVATIONS = "activations"  # the flag of a layout that records the outputs of all modules, too


def run(case, recipes: list[Recipe]) -> dict:
    """The outcome of one rank, as the template of the ranks wants it. What it found lies beside it, in a file of its own."""
    rank = Rank(recipes[case.item], case)
    try:
        with lift.float64():
            rank.run()
        outcome = {"outcome": "passed"}
    except BaseException as error:
        outcome = {"outcome": "failed", "line": first_line(error), "place": rank.stage, "text": traceback.format_exc()}
    rank.facts["stage"] = rank.stage
    rank.facts["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    (case.folder / f"facts{case.layout.rank}.json").write_text(json.dumps(rank.facts))
    return outcome


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:400]


class Rank:
    """One rank of one layout. `stage` is what it does at the moment."""

    def __init__(self, recipe: Recipe, case):
        self._recipe = recipe
        self._layout = case.layout
        self._checkpoint = (case.layout.golden or case.layout.out).parent / "checkpoint"
        self._saved = case.folder / "saved"
        self.stage = "start"
        self.facts: dict = {"seconds": {}}
        self._since = time.monotonic()

    def run(self) -> None:
        current.axes = list(self._layout.sizes.items())
        if self._layout.golden is None:
            self._enter("build")
            built = self._recipe.build(self._layout)
            if is_of_transformers(built):
                self._enter("save")
                built.save_pretrained(self._checkpoint)
        self._enter("load")
        model = self._recipe.start(self._checkpoint, self._layout, self._layout.golden)
        if self._layout.golden is None:
            self.facts["built"] = weights.difference(dict(named_parameters(built)), dict(named_parameters(model)))
        self._note_plan(model)
        if is_of_transformers(plain(model)):
            self._save(plain(model))
        self._train(model)
        if is_of_transformers(plain(model)) and self._layout.rank == 0 and "save_error" not in self.facts:
            self._enter("load again")
            again = type(plain(model)).from_pretrained(self._saved, dtype=torch.float64, attn_implementation="eager")
            start = StartParameters(self._layout.golden or self._layout.out)
            found = dict(named_parameters(again))
            self.facts["saved"] = weights.difference({name: start.tensor(name) for name in start.names()}, found)
        self._enter("end")

    def _save(self, model) -> None:
        """Saves before the step, so that what is loaded again is the start. What raises here need not hide what follows."""
        self._enter("save")
        try:
            model.save_pretrained(self._saved)
        except Exception as error:
            self.facts["save_error"] = first_line(error)

    def _enter(self, stage: str) -> None:
        now = time.monotonic()
        self.facts["seconds"][self.stage] = self.facts["seconds"].get(self.stage, 0.0) + now - self._since
        self._since, self.stage = now, stage

    def _note_plan(self, model) -> None:
        self.facts["parameters"] = sum(one.numel() for one in model.parameters())
        self.facts["local_bytes"] = sum(getattr(one, "_local_tensor", one).numel() * 8 for one in model.parameters())
        if self._layout.rank == 0 and self._layout.sizes["tp"] > 1 and is_of_transformers(plain(model)):
            self.facts["plan"] = plan.matched(plain(model))

    def _train(self, model) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, foreach=False)
        modules = {"activations": "*"} if ACTIVATIONS in self._layout.flags else {}
        with self._layout.record(model, optimizer, **modules) as rec:
            tokens, targets = batch(*global_batch())
            if not modules:  # outputs of two passes would be those of two micro-batches
                self._enter("inference")
                model.eval()
                with torch.no_grad():
                    rec.tensor("inference", scores(model, tokens, targets), kind="logprobs")
            self._enter("forward")
            model.train()
            found = scores(model, tokens, targets)
            loss = -found.mean()
            self._enter("backward")
            loss.backward()
            rec.logprobs(found)
            rec.scalar("loss", loss, mean_over=rec.mesh.batch_axes)
            self._enter("optimizer step")
            optimizer.step()
            self._enter("record")


def global_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(2, TOKENS, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def scores(model, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[B, S]: the logprobs of the targets; of a model without logits, a fixed function of its last hidden states."""
    if not is_of_transformers(plain(model)):
        output = model(tokens)
    else:
        output = model(input_ids=tokens, use_cache=False)
    if isinstance(output, torch.Tensor):
        logits = output
    else:
        logits = output.logits if "logits" in output else None
        if logits is None:
            hidden = output.last_hidden_state
            slope = torch.linspace(-1.0, 1.0, hidden.shape[-1], dtype=hidden.dtype)
            return (hidden * slope).mean(-1) + 0.1 * hidden.square().mean(-1)
    return torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
