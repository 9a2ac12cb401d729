"""A shop: orders that are paid, shipped and delivered, and trips that are booked, or undone, by a real Celery worker.

``python -m example_project`` runs it.
"""
