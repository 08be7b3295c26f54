"""The one exception of this package."""

import contextlib
import struct

AGAIN = "Record the run again, and let it reach its end"


class Error(RuntimeError):
    """A run cannot be recorded or loaded right. The message states the fact with its numbers, then the fix."""

    def __init__(self, fact: str, fix: str):
        super().__init__(f"{fact}. {fix}.")
        self.fact = fact
        self.fix = fix


@contextlib.contextmanager
def reading(path):
    """What is read here of a file of a run fails where the file is missing, cut off or damaged, and says so."""
    try:
        yield
    except (OSError, ValueError, struct.error) as error:
        raise Error(f'"{path}" is no whole file of a recorded run: {getattr(error, "strerror", None) or error}', AGAIN) from error
