"""The outbox: committed messages are published, at once or later, and removed."""
