"""Messages that wait in a worker together are handled together by one process of its pool."""
