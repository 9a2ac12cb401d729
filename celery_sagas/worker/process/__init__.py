"""What runs in a process of a worker beside its tasks."""
