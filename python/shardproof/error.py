"""The one exception of this package."""


class Error(RuntimeError):
    """A run cannot be recorded or loaded right. The message states the fact with its numbers, then the fix."""

    def __init__(self, fact: str, fix: str):
        super().__init__(f"{fact}. {fix}.")
        self.fact = fact
        self.fix = fix
