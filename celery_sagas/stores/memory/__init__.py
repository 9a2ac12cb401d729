"""The backend in memory: for tests, and for one process that may forget everything."""
