"""A shop: orders that are paid, shipped and delivered by a real Celery worker. ``python -m example_project`` runs it."""
