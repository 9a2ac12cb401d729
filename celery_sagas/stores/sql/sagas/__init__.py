"""Instances: found, inserted, updated, deleted and renamed."""
