"""Work: the unit of work and the dispatch. Knows the ports and no driver."""
