"""The engine: the unit of work and the dispatch. It depends on the ports, and on no driver."""
