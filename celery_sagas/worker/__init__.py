"""Celery: tasks, headers, signal receivers and the bootstep."""
