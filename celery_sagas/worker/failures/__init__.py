"""The treatment of messages that fail, cannot be handled now, or cannot be read."""
