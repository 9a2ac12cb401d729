"""Aggregators in SQL: items, groups, leases and flushes."""
