"""Stateful sagas for Celery: each message's effect happens exactly once."""
