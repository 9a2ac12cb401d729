"""The connections to a database, and the statements that run over them."""
