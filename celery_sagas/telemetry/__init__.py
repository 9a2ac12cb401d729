"""Telemetry: traces, metrics, the log's fields, and what probes look at. Nothing here is needed to handle a message."""
