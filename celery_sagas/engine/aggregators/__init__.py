"""Aggregators: items are buffered, and groups are flushed."""
