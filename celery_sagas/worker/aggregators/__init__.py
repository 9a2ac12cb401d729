"""Aggregators: the decorator, its tasks, the client for programs, and the batch consumer of workers."""
