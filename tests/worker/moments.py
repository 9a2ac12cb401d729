"""Times that count from when a test did something."""

import time


class Moment:
    """When something was done: after this was made, and before it is asked."""

    def __init__(self) -> None:
        self._earliest_s = time.time()

    def is_before(self, at_ms: float, seconds: float, most_s: float | None = None) -> bool:
        """Tell whether a time comes so many seconds after it, or up to ``most_s``, but for rounding to milliseconds."""
        latest_s = time.time() + (seconds if most_s is None else most_s)
        return self._earliest_s + seconds - 0.001 <= at_ms / 1000 <= latest_s + 0.001
