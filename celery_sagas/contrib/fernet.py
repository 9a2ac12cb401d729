"""The codec that encrypts what is stored, with Fernet: ``saga_codec = "celery_sagas.contrib.fernet:codec"``.

The keys are in the environment variable ``SAGA_FERNET_KEYS``, separated by commas. The first one encrypts; each decrypts, so that
keys can be rotated. An app with keys from elsewhere names a codec of its own: ``codec = FernetCodec(keys)``. While encryption
is switched on or off, ``celery_sagas.contrib.fernet:decrypting`` reads what is encrypted, and encrypts nothing.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from celery_sagas.errors import ConfigurationError, needs_extra

with needs_extra("encryption", "cryptography, with which celery_sagas.contrib.fernet encrypts,"):
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet

#: The environment variable that has the keys.
VARIABLE: Final = "SAGA_FERNET_KEYS"
_NEW_KEY: Final = 'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'


class FernetCodec:
    """Encrypts texts, and binds each to what it is about: it cannot be decrypted in the place of another one.

    Args:
        keys: Fernet's keys, the one that encrypts first; or what returns them, when the first text is encoded or decoded.
    """

    def __init__(self, keys: Sequence[str] | Callable[[], Sequence[str]]) -> None:
        self._keys = keys

    def encode(self, text: str, about: str) -> str:
        """Encrypt a text.

        Raises:
            ConfigurationError: There is no key, or one is none of Fernet's. The text does not repeat it.
        """
        return self._fernet.encrypt(_place(about) + text.encode()).decode()

    def decode(self, text: str, about: str) -> str:
        """Decrypt a text.

        Raises:
            ValueError: None of the keys decrypts it, or it is about something else.
            ConfigurationError: As for ``encode``.
        """
        try:
            found = self._fernet.decrypt(text)
        except (InvalidToken, ValueError):  # ValueError: it is not ASCII
            raise ValueError("none of the keys decrypts the text") from None
        place = _place(about)
        if not compare_digest(found[: len(place)], place):
            raise ValueError("the text is about something else")
        return found[len(place) :].decode()

    @cached_property
    def _fernet(self) -> MultiFernet:
        keys = self._keys() if callable(self._keys) else self._keys
        if isinstance(keys, str) or not keys:
            raise ConfigurationError("there is no key to encrypt with", f"Set {VARIABLE}: {_NEW_KEY} makes a key")
        try:
            return MultiFernet([Fernet(key) for key in keys])
        except (ValueError, TypeError):  # whose text might have a part of it
            raise ConfigurationError("one of the keys to encrypt with is none of Fernet's", f"{_NEW_KEY} makes a key") from None


class DecryptingCodec(FernetCodec):
    """Decrypts what was encrypted, and encrypts nothing: for the time in which processes switch one after the other."""

    def encode(self, text: str, about: str) -> str:
        """Return a text as it is.

        Raises:
            ConfigurationError: As for ``FernetCodec.encode``.
        """
        _ = self._fernet  # a process without keys does not start
        return text


def _place(about: str) -> bytes:
    """Return what stands before a text, whatever its length."""
    return sha256(about.encode()).digest()


def _from_environment() -> list[str]:
    return [key.strip() for key in os.environ.get(VARIABLE, "").split(",") if key.strip()]


codec: Final = FernetCodec(_from_environment)
decrypting: Final = DecryptingCodec(_from_environment)
