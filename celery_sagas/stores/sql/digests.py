"""Digests of texts that would be too long for an index."""

from hashlib import blake2b


def digest(*names: str, size: int = 20) -> str:
    """Return the digest of several names, as twice as many hexadecimal digits as it has bytes.

    In practice no two lists of names have the same one of 20 bytes.
    """
    text = "".join(f"{len(name)}:{name}" for name in names)
    return blake2b(text.encode(errors="surrogatepass"), digest_size=size).hexdigest()
