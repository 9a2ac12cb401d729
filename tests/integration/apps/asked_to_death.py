"""Counters that are asked, and whose process is killed, once at each point of its way through a message."""

import kill_points  # noqa: F401 - for its traps
from asked import app as app
