"""How deeply JSON values are nested: the decoder reads no more than some levels."""

from typing import Final

from pydantic_core import from_json

#: The most levels of arrays and objects that ``from_json`` reads.
LEVELS: Final = 200


def is_deeper(text: str, levels: int) -> bool:
    """Return whether a JSON text is nested more than so many levels deep."""
    if text.count("[") + text.count("{") <= levels:  # most texts have fewer, also of those side by side
        return False
    around = LEVELS - levels
    try:
        from_json(f"{'[' * around}{text}{']' * around}")
    except ValueError:
        return True
    return False
