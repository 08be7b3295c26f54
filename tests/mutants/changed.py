"""The rows whose function is another one in the working tree than in a commit."""

import shutil
import subprocess

from plant import FOLDERS, Sources


class NoCommit(Exception):
    pass


def _git(root, *words):
    if shutil.which("git") is None:
        raise NoCommit("git is not installed, and --changed asks it for the sources; apt-get install git")
    done = subprocess.run(["git", *words], cwd=root, capture_output=True)
    if done.returncode != 0:
        raise NoCommit(f"git {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def default_base(root):
    """Where the branch left origin/main; the last commit's parent where there is no such place, or on it."""
    try:
        base = _git(root, "merge-base", "HEAD", "origin/main").strip()
    except NoCommit:
        return "HEAD~1"
    return "HEAD~1" if base == _git(root, "rev-parse", "HEAD").strip() else base


def sources_at(root, commit):
    names = _git(root, "ls-tree", "-r", "-z", "--name-only", f"{commit}^{{commit}}", "--", *FOLDERS).split("\0")
    return Sources([name for name in names if name.endswith((".cpp", ".h"))],
                   lambda name: _git(root, "show", f"{commit}:{name}"))


def _differs(edit, before, now):
    here = now.spelling(edit)
    return here is None or here != before.spelling(edit)


def changed_rows(rows, root, commit):
    """Those that a change since `commit` may have touched: an edit's function differs by a token, or is not there."""
    before, now = sources_at(root, commit), Sources.below(root)
    return [row for row in rows if any(_differs(edit, before, now) for edit in row.edits)]
