"""A producer that adds numbers past the broker: ``filling.py <aggregator> <items>``."""

import sys

import batches_that_write

if __name__ == "__main__":
    getattr(batches_that_write, sys.argv[1]).add_many(range(int(sys.argv[2])))
