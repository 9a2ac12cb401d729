"""Stored text, as it is shown: it cannot forge a line, or control the terminal or the direction in which it is read."""

import json


def line(text: str) -> str:
    """Return text that stays in its line: it escapes line ends, cursor and direction controls, and invalid characters."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown or "-"


def sentence(text: str) -> str:
    """Return the text of an error in one line, with spaces for the line ends: those of drivers have several lines."""
    return " ".join(line(each.strip()) for each in text.split("\n") if each.strip())


def block(text: str) -> str:
    """Return text of several lines, each of them escaped as by ``line``."""
    return "\n".join(line(each) if each else "" for each in text.split("\n"))


def json_text(text: str) -> str:
    """Return JSON text that says the same and is safe on a terminal: it escapes what ``line`` does, in JSON's way."""
    if text.isprintable():
        return text
    # DEL is the one control character that JSON does not escape
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1].replace("\x7f", r"\u007f") for c in text)
