"""How deeply JSON values are nested: the decoder reads no more than some levels."""

from typing import Final

from pydantic_core import from_json

#: The most levels of arrays and objects that ``from_json`` reads; it reads one more if the innermost is an array.
LEVELS: Final = 200
#: The most levels of one value, or of a message's arguments, that an entry of the journal keeps: others lie around them.
LEVELS_KEPT: Final = 50


def is_deeper(text: str, levels: int) -> bool:
    """Return whether a JSON text is nested more than so many levels deep; an innermost array is not counted."""
    if text.count("[") + text.count("{") <= levels:  # most texts have fewer, also of those side by side
        return False
    around = LEVELS - levels
    try:
        from_json(f"{'[' * around}{text}{']' * around}")
    except ValueError:
        return True
    return False
