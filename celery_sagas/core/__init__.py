"""Rules: plain Python and pydantic, no Celery, no I/O and no clock."""
