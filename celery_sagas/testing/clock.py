"""A clock that tests move by hand."""


class Clock:
    """The store's clock in a test: it stands still until it is advanced."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now  #: milliseconds since the epoch

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now += ms
