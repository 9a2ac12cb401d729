"""Text from anywhere, made fit to be stored anywhere."""


def storable(text: str, characters: int) -> str:
    """Return a text that every store takes: what UTF-8 or PostgreSQL cannot hold is escaped, what is too long is cut off.

    Args:
        text: An error's, say, that may quote anything.
        characters: How many of it are kept.
    """
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:characters]
