"""A codec in which nothing can be read, and from whose text of another place nothing comes."""


class ReversingCodec:
    """Writes texts backwards, after what they are about."""

    def encode(self, text: str, about: str) -> str:
        return f"{about}{text[::-1]}"

    def decode(self, text: str, about: str) -> str:
        if not text.startswith(about):
            raise ValueError("it is about something else")
        return text.removeprefix(about)[::-1]


codec = ReversingCodec()
