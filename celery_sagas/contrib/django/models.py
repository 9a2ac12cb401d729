"""No models: Django reports the end of ``migrate`` to apps with this module alone."""
