"""What of a backend's URL and options is never shown."""

from collections.abc import Iterable

#: Stands for a secret.
HIDDEN = "***"
_WORDS = ("pass", "pwd", "secret", "token")


def is_secret(argument: str) -> bool:
    """Return whether the value of an argument with this name must not be shown."""
    return any(word in argument.lower() for word in _WORDS)


def hide(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets, should a driver have repeated one in its text."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
