"""The configuration of Sphinx."""

from importlib.metadata import version as version_of

project = "celery-sagas"
author = "The celery-sagas maintainers"
copyright = author
version = release = version_of("celery-sagas")

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {version}"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
