"""Transactions that hold rows of the user's and rows of this library: begun by either."""
