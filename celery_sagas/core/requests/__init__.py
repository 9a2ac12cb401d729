"""The requests of instances, and their outcomes."""
