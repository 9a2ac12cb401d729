"""The backend in Redis."""
