"""The configuration of Sphinx."""

import json
import tomllib
from functools import reduce
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pygal
from pygal.style import Style

project = "celery-sagas"
author = "The celery-sagas maintainers"
copyright = author
version = release = version_of("celery-sagas")

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
_urls = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]["urls"]
html_baseurl = f"{_urls['Documentation']}/en/stable/"
html_theme_options = {"source_repository": _urls["Source"], "source_branch": "main", "source_directory": "docs/"}

myst_enable_extensions = ["deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
mermaid_height = "auto"

#: What ``tox -e benchmarks`` has written.
BENCHMARKS = Path(__file__).with_name("benchmarks.json")
#: Of the benchmarks' names, what is the same for all bars.
_COMMON = (" against no-op", ", prefork 2", ", redis://")
#: Readable on the theme's light background and on its dark one.
_GREY, _BLUE = "#808080", "#3a86c8"


def draw_speed(app: Any) -> None:
    """Draw the rates of the benchmarks, as parts of that of a no-op task on the same broker."""
    bars = {"no-op task": 1.0}
    for line in json.loads(BENCHMARKS.read_text()):
        if "against no-op" in line["what"] and "prefork" in line["what"]:
            bars[reduce(lambda name, part: name.replace(part, ""), _COMMON, line["what"])] = line["ratio"]
    style = Style(background="transparent", plot_background="transparent", colors=(_BLUE,), font_family="sans-serif")
    style.foreground = style.foreground_strong = style.foreground_subtle = _GREY
    style.guide_stroke_color = style.major_guide_stroke_color = _GREY
    style.label_font_size = style.major_label_font_size = 14
    chart = pygal.HorizontalBar(style=style, js=[], show_legend=False, print_values=True, height=36 * len(bars) + 60)
    chart.x_labels = list(bars)[::-1]
    chart.add("", list(bars.values())[::-1], formatter=lambda ratio: f"{ratio:.2f}")
    target = Path(app.srcdir) / "_build" / "speed.svg"
    target.parent.mkdir(exist_ok=True)
    chart.render_to_file(str(target))


def setup(app: Any) -> None:
    """Draw before the pages are read."""
    app.connect("builder-inited", draw_speed)
