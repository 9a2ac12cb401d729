"""Aggregators: items, groups, leases and flushes."""
