"""The contract, one file for each group of sentences of the ports."""
