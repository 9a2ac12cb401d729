"""Aggregators in Redis: items, groups, leases and flushes."""
