"""Requests: messages whose answers an instance waits for, one by one or gathered."""
