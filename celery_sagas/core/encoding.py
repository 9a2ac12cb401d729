"""The mark of text that the setting ``saga_codec`` has encoded."""

from typing import Final

#: What was encoded begins with it; no JSON does.
MARK: Final = "enc1:"
#: What is wrong with text that still has the mark where it is read.
PROBLEM: Final = "it cannot be decoded by saga_codec"
#: What to do about it: a sentence, without its full stop.
REMEDY: Final = "Run this process with the saga_codec, and with the keys, with which it was written"


class UndecodedError(ValueError):
    """Raised when text is read that the codec of this process could not decode, or that was encoded, and there is no codec."""

    def __init__(self) -> None:
        super().__init__(PROBLEM)


def check_decoded(text: str) -> None:
    """Check that a text is no longer encoded.

    Raises:
        UndecodedError: It is.
    """
    if text.startswith(MARK):
        raise UndecodedError
