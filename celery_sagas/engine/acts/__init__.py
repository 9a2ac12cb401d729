"""Operators' acts: what a person decides about an instance."""
