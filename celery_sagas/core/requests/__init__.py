"""Requests: what an instance has asked for, and what comes of it."""
