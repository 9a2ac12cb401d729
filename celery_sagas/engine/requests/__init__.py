"""Requests: the answers to a gather are collected beside its instance."""
