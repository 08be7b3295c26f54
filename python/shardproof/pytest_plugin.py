"""The pytest plugin: runs a test on the ranks of each layout and compares what it records with one rank.

    @pytest.mark.layouts("tp2", "dp2 tp2 sp")               # noise=16: for tests below float64
    def test_my_model(layout):
        ..
"""

import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import program
from .arguments import at_least_1, seconds
from .error import Error
from .pytest_layout import Layout
from .pytest_phases import RANK_LAYOUT, run_on_rank

GOLDEN = "1"
# torch imports _dynamo at the first step of an optimizer.
PRELOAD = ("torch.distributed", "torch._dynamo", "shardproof.recorder", "shardproof.golden")
TENSOR_LINE = re.compile(r"^  tensor +(.*)$", re.MULTILINE)
NOTES = re.compile(r"^  note +(.*(?:\n {4,}.*)*)", re.MULTILINE)
TOLD = ("because only the reference recorded it", "this run has one rank")  # of the judge's notes, separated by semicolons
NOTE = "shardproof"  # the name of a test's property, which reports hold
NOTHING = "nothing was recorded, so nothing was compared"
ONE_RANK = "this run has one rank, as the golden has"
LONGEST_NAME = 100  # of a run's folder, before its number
# "MATCH, 33 of 38 not judged", or in a longer line "33 of 38 tensors unresolved".
NOT_JUDGED = re.compile(r"(\d+) of (\d+) (?:tensors )?(?:not judged|unresolved)")


def pytest_addoption(parser) -> None:
    group = parser.getgroup("shardproof", "tests on the ranks of layouts (shardproof)")
    parser.addini("shardproof_no_unresolved", "Fail tests of which the judge leaves tensors unresolved.", "bool", False)
    group.addoption("--shardproof-no-unresolved", action="store_true",
                    help="Fail each test of which the judge leaves tensors unresolved. Also an option of the ini file, "
                         "shardproof_no_unresolved, and of the marker, no_unresolved=True or False.")
    group.addoption("--shardproof", metavar="PATH", default=os.environ.get("SHARDPROOF_PROGRAM", ""),
                    help="The program that judges recorded runs: a path, or a name in PATH. "
                         "Write --shardproof=PATH: pytest takes a PATH that stands alone as a place of tests. "
                         "Default: SHARDPROOF_PROGRAM, shardproof-light, or shardproof.")
    group.addoption("--shardproof-timeout", metavar="SECONDS", type=seconds, default=60.0,
                    help="How long the ranks of one layout may take. Default: 60.")
    group.addoption("--shardproof-max-ranks", metavar="N", type=at_least_1, default=64,
                    help="The most ranks that a layout may have, each a process of this machine. Default: 64.")
    group.addoption("--shardproof-preload", metavar="MODULES", default="",
                    help="Modules, separated by commas, that are imported once for all ranks, "
                         "such as transformers,megatron.core.")


def pytest_configure(config) -> None:
    check_arguments(config)
    config.addinivalue_line("markers", "layouts(layout, .., noise=0, no_unresolved=False): run the test on the ranks of each layout, such as "
                                       '"dp2 tp2 sp", and compare what it records with one rank. Below float64, '
                                       "noise=16 runs the one rank 16 times more, with other roundings. "
                                       "no_unresolved=True fails a test of which tensors are left unresolved")


def check_arguments(config) -> None:
    """Refuses a program that pytest took as a place of tests when it looked for the root folder: that is before it knows
    the options of plugins."""
    given = list(map(str, config.invocation_params.args))
    path = given[given.index("--shardproof") + 1:][:1] if "--shardproof" in given else []
    named = any(one.split("=")[0] in ("--rootdir", "-c", "--config-file") for one in given) or config.inipath
    if path and Path(path[0]).exists() and not named:
        raise pytest.UsageError(f'pytest took "{path[0]}" as a place of tests, so that the root folder is '
                                f'"{config.rootpath}". Write --shardproof={path[0]} with an equals sign.')


def pytest_generate_tests(metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("layouts")
    if marker is None:
        return
    name = metafunc.definition.name
    if "layout" not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{name} has the marker layouts, but does not take the fixture layout. Write def {name}(layout).")
    own = [one for one in metafunc.definition.own_markers if one.name == "layouts"]
    if len(own) > 1:
        raise pytest.Collector.CollectError(f"{name} has {len(own)} markers layouts, of which pytest gives one. Name all "
                                            "layouts in one marker.")
    unknown = sorted(set(marker.kwargs) - {"noise", "no_unresolved"})
    noise, demands = marker.kwargs.get("noise", 0), marker.kwargs.get("no_unresolved", False)
    if type(noise) is not int or noise < 0 or type(demands) is not bool:
        raise pytest.Collector.CollectError(f"{name}: noise={noise!r} and no_unresolved={demands!r} of the marker layouts. Give "
                                            "a number of repeats from 0, and True or False.")
    if unknown or not marker.args:
        raise pytest.Collector.CollectError(
            f"{name}: the marker layouts has no argument '{unknown[0]}'; it takes layouts, noise and no_unresolved." if unknown
            else f'{name}: the marker layouts names no layout. Write @pytest.mark.layouts("tp2").')
    try:
        layouts = [Layout(text) for text in marker.args]
    except Error as error:
        raise pytest.Collector.CollectError(f"{name}: {error}") from None
    most = metafunc.config.option.shardproof_max_ranks
    for layout in layouts:
        if layout.world_size > most:
            raise pytest.Collector.CollectError(
                f'{name}: the layout "{layout}" has {layout.world_size} ranks, each a process of this machine. '
                f"Use at most {most}, or give --shardproof-max-ranks {layout.world_size}.")
    metafunc.parametrize("layout", layouts, indirect=True, ids=[layout.text for layout in layouts])


@pytest.fixture
def layout(request) -> Layout:
    """The layout of the ranks on which the test runs, and this rank's place in it."""
    if RANK_LAYOUT not in request.config.stash:
        raise pytest.UsageError(f'{request.node.name} takes the fixture layout without the marker layouts. '
                                'Add @pytest.mark.layouts("tp2").')
    return request.config.stash[RANK_LAYOUT]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session) -> None:
    """Forks the template of the ranks. All tests are imported now, and none has run."""
    config = session.config
    layouts = {item: layout for item in session.items if (layout := layout_of(item))}
    if not layouts or config.option.collectonly:
        return
    config._tmp_path_factory.getbasetemp()  # else each rank would make a folder of its own
    judge, problem = find_program(config.option.shardproof)
    if problem:
        config.pluginmanager.register(Refusal(problem), "shardproof-layouts")
        return
    from .pytest_ranks import Template
    preload = [*PRELOAD, *filter(None, config.option.shardproof_preload.split(","))]
    captured = config.option.capture != "no"
    template = Template(lambda case: run_on_rank(session.items[case.item], case), preload,
                        config.option.shardproof_timeout, captured)
    config.add_cleanup(template.stop)
    config.pluginmanager.register(LayoutTests(config, template, session.items, judge), "shardproof-layouts")


def find_program(name: str) -> tuple[str, str]:
    """The program that judges, or what to do where it is not found. The light one starts sooner: it has no LibTorch."""
    found, problem = program.find(name)
    return found, problem and f"{problem}. Or give the path of a built one with --shardproof=PATH, or in SHARDPROOF_PROGRAM."


def layout_of(item) -> Layout | None:
    """The layout of a test that has the marker."""
    if item.get_closest_marker("layouts") is None:
        return None
    found = getattr(getattr(item, "callspec", None), "params", {}).get("layout")
    if not isinstance(found, Layout):
        raise pytest.UsageError(f"{item.nodeid} has the marker layouts, but no layout. Put the marker on a test function "
                                "of pytest, or on a method of a plain class; not on a pytest.param.")
    return found


# In the process of pytest.


class Run:
    """What became of a layout's run: its folder, and why it failed or was given up."""

    def __init__(self, folder: Path, failure: str, given_up: tuple[str, str] | None = None):
        self.folder = folder / "run"
        self.failure = failure
        self.given_up = given_up  # ("skip" or "xfail", its reason)

    @property
    def is_recorded(self) -> bool:
        return (self.folder / "run.json").exists()


class Refusal:
    """Fails the tests that have the marker at once."""

    def __init__(self, problem: str):
        self._problem = problem

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item) -> None:
        if layout_of(item):
            pytest.fail(self._problem, pytrace=False)


class LayoutTests:
    """Runs the tests that have the marker on ranks, in place of this process."""

    def __init__(self, config, template, items, program: str):
        self._config = config
        self._program = program
        self._template = template
        self._numbers = {item: number for number, item in enumerate(items)}
        self._goldens: dict = {}  # (attempt, Run)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item) -> None:
        """Fixtures are set up on each rank. A fixture whose value is known is not set up here."""
        if layout_of(item):
            item.funcargs.update(dict.fromkeys(item.fixturenames))

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem) -> bool | None:
        layout = layout_of(pyfuncitem)
        if layout is None:
            return None
        golden = self._golden(pyfuncitem)
        check(golden)
        run = self._run(pyfuncitem, Layout(layout.text), golden.folder)
        check(run)
        self._compare(pyfuncitem, layout, run, golden)
        return True

    def _golden(self, item) -> Run:
        """The run on one rank, once for all layouts of a test."""
        # Before pytest 8, the parameters that are not fixtures' are in funcargs.
        parameters = {**getattr(item.callspec, "funcargs", {}), **item.callspec.params, "layout": None}
        key = (item.parent.nodeid, item.originalname, *sorted((name, id(value)) for name, value in parameters.items()))
        attempt = getattr(item, "execution_count", 1)  # of pytest-rerunfailures
        known, golden = self._goldens.get(key, (None, None))
        if golden is None or (golden.failure and known != attempt):
            golden = self._run(item, Layout(GOLDEN), None)
            self._goldens[key] = attempt, golden
            if golden.is_recorded and not golden.failure:
                golden.failure = self._repeat(item, golden)
        return golden

    def _repeat(self, item, golden: Run) -> str:
        """Repeats the golden with other roundings, and returns why a repeat failed."""
        repeats = item.get_closest_marker("layouts").kwargs.get("noise", 0)
        for number in range(1, repeats + 1):
            layout = Layout(GOLDEN)
            layout.noise = number
            failure = self._run(item, layout, golden.folder).failure
            if failure:
                return f"repeat {number} of {failure}"
        return ""

    def _run(self, item, layout: Layout, golden: Path | None) -> Run:
        from .pytest_ranks import Case
        name = re.sub(r"\W+", "-", f"{item.originalname}-{layout}-", flags=re.ASCII)
        folder = self._config._tmp_path_factory.mktemp(name[:LONGEST_NAME])
        layout.out, layout.golden = golden if layout.noise else folder / "run", golden
        try:
            endings = self._template.run(Case(self._numbers[item], layout, folder))
        except RuntimeError as error:
            return Run(folder, str(error))
        for title, text in sections(endings, layout, folder):
            item.add_report_section("call", title, text)
        run = Run(folder, failure_text(endings, layout, folder, self._config.option.shardproof_timeout), given_up(endings))
        if not run.failure:  # else it says what the rank printed; filters may make an error of a warning
            warn_again(endings)
        return run

    def _compare(self, item, layout: Layout, run: Run, golden: Run) -> None:
        if not run.is_recorded and not golden.is_recorded:
            item.user_properties.append((NOTE, NOTHING))
            if self._demands_all(item):
                pytest.fail(f'layout "{layout}": {NOTHING}, and no_unresolved is set', pytrace=False)
            return
        if not (run.is_recorded and golden.is_recorded):
            sides = [f'layout "{layout}"', "one rank"]
            recorded, other = sides if run.is_recorded else reversed(sides)
            pytest.fail(f"The test recorded a run on {recorded}, but none on {other}. "
                        "Call layout.record on all layouts or on none.", pytrace=False)
        status, text = program.judged(self._program, run.folder, golden.folder, self._config.option.shardproof_timeout)
        if status == 0:
            counts = not_judged(text)
            item.user_properties.extend((NOTE, note) for note in notes(text, layout))
            if counts:
                item.user_properties.append((NOTE, counts))
                if self._demands_all(item):
                    pytest.fail(f'layout "{layout}": {counts}, and no_unresolved is set\n{text}', pytrace=False)
                text = text if text.startswith(counts) else f"{counts}\n{text}"
            item.add_report_section("call", "stdout of the judge", text)
        elif status == 1:
            pytest.fail(f'layout "{layout}" differs from one rank: {finding(text)}\n{text}', pytrace=False)
        else:
            pytest.fail(f'layout "{layout}" could not be judged; shardproof ended with status {status}\n{text}',
                        pytrace=False)

    def _demands_all(self, item) -> bool:
        """Whether a tensor that is left unresolved fails the test."""
        everywhere = self._config.option.shardproof_no_unresolved or self._config.getini("shardproof_no_unresolved")
        return item.get_closest_marker("layouts").kwargs.get("no_unresolved", everywhere)


def pytest_terminal_summary(terminalreporter) -> None:
    """Says of tests that passed how much of them was not judged."""
    notes = [(report.nodeid, text) for report in terminalreporter.stats.get("passed", ())
             for name, text in getattr(report, "user_properties", ()) if name == NOTE]
    if notes:
        terminalreporter.section("not judged by shardproof")
        for nodeid, text in notes:
            terminalreporter.line(f"{nodeid}: {text}")


def check(run: Run) -> None:
    """Raises what the run says of the test."""
    if run.failure:
        pytest.fail(run.failure, pytrace=False)
    if run.given_up:
        outcome, reason = run.given_up
        getattr(pytest, outcome)(reason)


def not_judged(text: str) -> str:
    """ "MATCH, 33 of 38 not judged" of a match that leaves tensors unresolved; else empty."""
    found = NOT_JUDGED.search(text.splitlines()[0] if text else "")
    return f"MATCH, {found[1]} of {found[2]} not judged" if found and found[1] != "0" else ""


def notes(text: str, layout: Layout) -> list[str]:
    """What a match does not say: what the run lacks, and that it has one rank."""
    said = NOTES.search(text)
    found = [note for note in " ".join(said[1].split()).split("; ") if any(part in note for part in TOLD)] if said else []
    is_said = any(TOLD[1] in note for note in found)
    return found if is_said or layout.world_size > 1 else [*found, ONE_RANK]


def finding(text: str) -> str:
    """The first wrong tensor, for the summary of pytest."""
    found = TENSOR_LINE.search(text)
    return re.sub(r" {2,}", " ", found[1]) if found else "the judge says:"


def warn_again(endings) -> None:
    """Gives the warnings of the ranks to pytest, one of several ranks once."""
    ranks = (json.dumps(one) for ending in endings for one in (ending.result or {}).get("warnings", ()))
    for text, names, file, line in map(json.loads, dict.fromkeys(ranks)):
        category = next(filter(None, (made_of_text(getattr(sys.modules.get(module), name, None)) for module, name in names)))
        warnings.warn_explicit(text, category, file, line)


def made_of_text(category):
    """The class of warnings, if it is one that needs a text alone."""
    try:
        return category if issubclass(category, Warning) and category("") is not None else None
    except TypeError:
        return None


def given_up(endings) -> tuple[str, str] | None:
    """How a rank gave up the test, by pytest.skip or pytest.xfail, and its reason."""
    return next(((ending.result["outcome"], ending.result["line"]) for ending in endings if ending.gave_up), None)


def sections(endings, layout: Layout, folder: Path) -> Iterator[tuple[str, str]]:
    """(title, text) of what each rank printed and logged."""
    from .pytest_ranks import outputs
    where = " of the golden" if layout.text == GOLDEN else ""
    for ending in sorted(endings, key=lambda one: one.rank):
        logs = (ending.result or {}).get("logs", ())
        for title, text in [*outputs(folder, ending.rank).items(), ("log", "\n".join(logs))]:
            if text:
                yield f"{title} of rank {ending.rank}{where}", text


def failure_text(endings, layout: Layout, folder: Path, timeout: float) -> str:
    """What went wrong on the ranks, the first that failed first; empty if nothing did."""
    from .pytest_ranks import what_happened
    failed = [ending for ending in endings if not ending.passed and not ending.gave_up]
    skipped = [ending for ending in endings if ending.gave_up and ending.result["outcome"] == "skip"]
    if not failed and (not skipped or len(skipped) == len(endings)):
        return ""
    ranks: dict[str, list[int]] = {}
    for ending in failed:
        ranks.setdefault(what_happened(ending, folder, timeout), []).append(ending.rank)
    for ending in skipped:
        ranks.setdefault(f"skipped the test ({ending.result['line']}), and others did not", []).append(ending.rank)
    name = "the golden (one rank)" if layout.text == GOLDEN else f'layout "{layout}"'
    lines = [f"{ranks_of(numbers)} {line}" for line, numbers in ranks.items()]
    # Those that failed later, often because the first one had left, need no traceback.
    traceback = (failed[0].result or {}).get("text", "") if failed else ""
    return f"{name}: " + "\n".join([*lines, traceback]).rstrip()


def ranks_of(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))
