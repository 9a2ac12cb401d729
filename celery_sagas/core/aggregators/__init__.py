"""Aggregators: their definition, items, batches, and the rules by which a group is flushed."""
