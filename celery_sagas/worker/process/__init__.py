"""The parts of a worker process beside its tasks."""
