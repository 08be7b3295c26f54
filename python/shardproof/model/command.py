"""The command: each model on one rank and on the ranks of each layout, a line for each."""

import argparse
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

from .. import __version__, arguments as values, program as program_file
from ..error import Error
from ..pytest_layout import Layout
from . import families, rank, recipe, results
from .results import Result

DESCRIPTION = """\
Builds a tiny model, runs it on one rank in float64 and on the ranks of each layout, and judges loaded weights, inference,
loss, every gradient, one optimizer step, and the weights after saving and loading. NAME is a family of transformers, a folder
with a config.json, or module:function, which returns a model."""
EPILOG = """\
Exit status: 0 all match; 1 a layout is wrong or raises; 2 bad input, or a model that is not built."""
PRELOAD = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch._dynamo", "shardproof.recorder",
           "shardproof.golden")


def parse(arguments):
    parser = argparse.ArgumentParser("shardproof model", description=DESCRIPTION, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="family, folder, or module:function")
    parser.add_argument("--layouts", default="tp2", help='layouts, separated by commas: "tp2, dp2, fsdp2, dp2 tp2"; tp2')
    parser.add_argument("--all", action="store_true", help="every family of transformers that has a tp_plan")
    parser.add_argument("--jobs", type=values.at_least_1, default=1, metavar="N", help="families side by side; 1")
    parser.add_argument("--timeout", type=values.seconds, default=120.0, metavar="SECONDS", help="of a layout; 120")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keeps runs that are wrong, the results and a page there; "
                        "a second call runs what is not there yet")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the results as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="writes the results as JUnit XML")
    parser.add_argument("--verbose", action="store_true", help="prints each finding and traceback whole")
    options = parser.parse_args(arguments)
    if bool(options.names) == options.all:
        parser.error("give one or more NAMEs, or --all")
    options.names = list(dict.fromkeys(options.names))  # two of one name would share a folder
    return options


def main(arguments) -> int:
    options = parse(arguments)
    try:
        layouts = layouts_of(options.layouts)
        program = program_that_judges()
        sys.path.insert(0, "")
        recipe.patch_transformers(is_needed=options.all or not all(":" in name for name in options.names))
        recipes = [recipe.OfTransformers(one.name, one) for one in families.all_with_plan()] if options.all \
            else [recipe.find(name) for name in options.names]
    except Error as error:
        return refuse(str(error))
    try:
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
        if problem := values.why_not_written(options.json) or values.why_not_written(options.junit):
            return refuse(problem)
        if options.out is None:
            with tempfile.TemporaryDirectory(prefix="shardproof-model-") as folder:
                return Command(options, layouts, recipes, program, Path(folder)).run()
        return Command(options, layouts, recipes, program, options.out).run()
    except OSError as error:
        return refuse(f"{error}. Not everything was run. Free what is lacking, and start the command again")


def refuse(reason: str) -> int:
    print(f"shardproof model: {reason}", file=sys.stderr)
    return 2


def layouts_of(text: str) -> list[Layout]:
    found = [Layout(one) for one in dict.fromkeys(" ".join(one.split()) for one in text.split(",")) if one]
    for layout in found:
        unknown = [word for word in [*layout.sizes, *layout.flags] if word not in recipe.AXES]
        if unknown or layout.flags or layout.world_size == 1:
            raise Error(f'The layout "{layout}" cannot be run by name', f"Use the axes {', '.join(recipe.AXES)} with "
                        'their sizes, such as "dp2 tp2", and at least two ranks')
    if not found:
        raise Error("--layouts names no layout", 'Write --layouts "tp2, dp2"')
    return found


def program_that_judges() -> str:
    found, problem = program_file.find(os.environ.get("SHARDPROOF_PROGRAM", ""))
    if problem:
        raise Error(*problem.split(". ", 1))
    return found


class Command:
    """All models on all layouts."""

    def __init__(self, options, layouts, recipes, program: str, folder: Path):
        self._options, self._layouts, self._recipes, self._program, self._folder = \
            options, layouts, recipes, program, folder
        self._results: list[Result] = []
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def run(self) -> int:
        from ..pytest_ranks import Template
        kept = {recipe.name for recipe in self._recipes if recipe.is_of_packages}
        earlier = results.read(self._folder, self._versions()) if self._options.out else []
        known = [one for one in earlier if one.name in kept]
        done = {(one.name, one.layout) for one in known}
        self._results += [one for one in known if one.layout in ["1", *map(str, self._layouts)]]
        for one in self._results:
            print(one.line(), flush=True)
        todo: queue.SimpleQueue = queue.SimpleQueue()
        for index, one in enumerate(self._recipes):
            if not {(one.name, str(layout)) for layout in self._layouts} <= done and (one.name, "1") not in done:
                todo.put(index)
        templates = [Template(lambda case: rank.run(case, self._recipes), PRELOAD, self._options.timeout, True)
                     for _ in range(min(self._options.jobs, max(todo.qsize(), 1)))]
        workers = [threading.Thread(target=self._work, args=(todo, one, done)) for one in templates]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            for one in templates:
                one.stop()
        if self._failure:
            raise self._failure
        return self._end()

    def _versions(self) -> dict:
        import torch
        found = sys.modules.get("transformers")
        return {"shardproof": __version__, "torch": str(torch.__version__)} | ({"transformers": found.__version__} if found else {})

    def _work(self, todo, template, done) -> None:
        while not self._failure:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                for result in ModelRun(self, index, template, self._layouts, done).results():
                    self._take(result)
            except Exception as error:  # that of a thread would be lost, and what is there be taken for all
                self._failure = error

    def _take(self, result: Result) -> None:
        with self._lock:
            self._results.append(result)
            if self._options.out:
                results.add(self._folder, result, self._versions())
            print(result.line(), flush=True)
            if self._options.verbose and result.text:
                print(result.text, flush=True)

    def _end(self) -> int:
        found = self._results
        if self._options.out:
            results.write_page(self._folder, found, self._versions())
        if self._options.json:
            results.write_json(self._options.json, found, self._versions())
        if self._options.junit:
            results.write_junit(self._options.junit, found)
        if len(found) > 1:
            print(results.summary(found))
        verdicts = {one.verdict for one in found}
        return 1 if verdicts & {"mismatch", "raises"} else 2 if "not built" in verdicts else 0


class ModelRun:
    """One model: the golden, then each layout."""

    def __init__(self, command, index: int, template, layouts, done):
        self._command, self._index, self._template, self._layouts, self._done = command, index, template, layouts, done
        self._recipe = command._recipes[index]
        self._folder = command._folder / "runs" / quote(self._recipe.name, safe="").replace(".", "%2E")

    def results(self):
        kept = self._remove_earlier()
        found, failed = self._run(Layout("1"), None)
        if failed:
            yield found
        else:
            found.judged(0, "")
            if found.verdict == "match":
                found = None
            else:  # one rank does not load what it has saved
                yield found
            for layout in self._layouts:
                if (self._recipe.name, str(layout)) not in self._done:
                    result = self._judge(layout)
                    found = found if result.verdict == "match" else result
                    yield result
        if found is None and not kept:  # what is wrong stays, with its golden
            shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_earlier(self) -> bool:
        """Removes what an earlier call has left, but for layouts that are wrong and do not run again; whether there are any."""
        kept = {self._folder_of(Layout(layout)) for name, layout in self._done if name == self._recipe.name}
        kept = {folder for folder in kept if folder.exists()}
        for folder in self._folder.glob("*"):
            of_layout = folder.with_name(folder.name.removesuffix(f"-{rank.ACTIVATIONS}"))
            if not kept or of_layout not in {*kept, self._folder_of(Layout("1"))}:
                shutil.rmtree(folder, ignore_errors=True)
        return bool(kept)

    def _run(self, layout: Layout, golden: Path | None) -> tuple[Result, bool]:
        """What became of the ranks of a layout, and whether a rank failed."""
        from ..pytest_ranks import Case
        folder = self._folder_of(layout)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        layout.out, layout.golden = folder / "run", golden
        since = time.monotonic()
        result = Result(self._recipe.name, layout.text)
        try:
            endings = self._template.run(Case(self._index, layout, folder))
        except RuntimeError as error:
            result.verdict, result.detail = "raises", str(error)
            return result, True
        result.seconds = time.monotonic() - since
        facts = {int(path.stem.removeprefix("facts")): json.loads(path.read_text()) for path in folder.glob("facts*.json")}
        result.peak_mib = max((one["peak_mib"] for one in facts.values()), default=0)
        result.take(facts[min(facts)] if facts else {})
        cannot_save = [rank for rank in sorted(facts) if "save_error" in facts[rank]]
        if cannot_save and not result.save_error:
            result.save_error = f"{facts[cannot_save[0]]['save_error']} (rank {cannot_save[0]})"
        failed = [one for one in endings if not one.passed]
        if failed:
            self._say_why(result, failed[0], layout, folder)
        return result, bool(failed)

    def _say_why(self, result: Result, ending, layout: Layout, folder: Path) -> None:
        from ..pytest_ranks import what_happened
        stage = (ending.result or {}).get("place", "")
        result.verdict = "not built" if layout.world_size == 1 else "raises"
        result.detail = f"{stage}: {ending.result['line']}" if ending.result else \
            what_happened(ending, folder, self._command._options.timeout)
        result.text = (ending.result or {}).get("text", "")

    def _judge(self, layout: Layout) -> Result:
        golden = self._folder / "1" / "run"
        result, failed = self._run(Layout(layout.text), golden)
        if failed:
            return result
        since = time.monotonic()
        run = self._folder_of(layout) / "run"
        result.judged(*self._answer(run, golden))
        if result.is_of_forward_pass():
            result.where = self._first_wrong_output(layout)
        result.seconds += time.monotonic() - since
        if result.verdict == "match":
            shutil.rmtree(run.parent, ignore_errors=True)
        return result

    def _answer(self, run: Path, golden: Path) -> tuple[int, str]:
        return program_file.judged(self._command._program, run, golden, self._command._options.timeout)

    def _first_wrong_output(self, layout: Layout) -> str:
        """Runs both again and records the outputs of all modules: what the judge says of the first wrong one."""
        one, many = Layout("1"), Layout(layout.text)
        for again in (one, many):
            again.flags.add(rank.ACTIVATIONS)
            _, failed = self._run(again, None if again is one else self._folder_of(one) / "run")
            if failed:
                return ""
        _, text = self._answer(self._folder_of(many) / "run", self._folder_of(one) / "run")
        return results.finding(text)

    def _folder_of(self, layout: Layout) -> Path:
        return self._folder / "-".join([*layout.text.split(), *layout.flags])
