"""The connections to a server or a cluster, and the scripts that run over them."""
