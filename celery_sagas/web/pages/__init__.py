"""The pages: functions that read what they show, and return it with the name of a template."""
