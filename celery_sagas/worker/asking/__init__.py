"""Asking: how a request becomes a message, again when it has failed, and how its work is undone."""
