"""Sagas in virtual time: steps, participants, timeouts and the broker in one process, as a test moves them."""
