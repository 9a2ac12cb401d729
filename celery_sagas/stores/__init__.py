"""State: the ports, and one folder of adapters for each kind of backend."""
