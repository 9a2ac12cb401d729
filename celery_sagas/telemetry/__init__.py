"""What is measured and traced, for tools that watch an application."""
