"""The graph of a saga: what its steps declare and what their handlers' code does, as a drawing or as text."""
