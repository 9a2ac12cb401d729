"""The codec that the setting ``saga_codec`` names, and what it is told of each text."""

import json
from importlib import import_module
from operator import attrgetter
from typing import Final, Protocol, runtime_checkable

from celery_sagas.core.encoding import MARK
from celery_sagas.core.pending import NOTHING
from celery_sagas.errors import BUGS, ConfigurationError

_METHODS: Final = "Give it encode(text, about) and decode(text, about), as celery_sagas.stores.encoded.Codec has them"
_PATH: Final = "Write it as package.module:object, and install the package, or put it on PYTHONPATH"
#: What a new codec has to give back.
_TRIED: Final = '{"tried": "é"}'
#: What no codec has encoded.
_FOREIGN: Final = "tried"


@runtime_checkable
class Codec(Protocol):
    """Encodes the texts that hold values of users before they are stored, and decodes them; the setting ``saga_codec`` names one.

    Its methods are called in any thread of any process, for each message several times: they must be quick, and safe to be
    called at once.

    ``about`` says to what a text belongs: a JSON array of texts, ASCII alone, the same for ``encode`` and for ``decode``, and
    the same for as long as the text is stored. A codec that binds the encoded text to it notices a text that was put into the
    place of another one. It is one of these, where each id is the one that the store has:

    * ``["state", INSTANCE]``, ``["pending", INSTANCE]``: the state, and the pending map, of the instance with this id;
    * ``["journal", STEP, MESSAGE]``: the details of the journal's entry of a message that a step has handled;
    * ``["message", MESSAGE]``: a message in the outbox, or in a dead letter;
    * ``["item", AGGREGATOR, GROUP, ITEM]``: an item that is buffered, or that was rejected and is a dead letter;
    * ``["audit", ENTRY]``: the details of an entry of the audit.
    """

    def encode(self, text: str, about: str) -> str:
        """Return a text in which the values cannot be read; it has neither U+0000 nor half a surrogate pair.

        A text that is returned as it is, is stored as without a codec.
        """
        ...

    def decode(self, text: str, about: str) -> str:
        """Return the text for which ``encode`` has returned this.

        Raises:
            ValueError: It cannot be decoded, with the keys that there are. The error is not shown, nor logged.
        """
        ...


class Texts:
    """Encodes and decodes single texts. What cannot be decoded stays as it is stored: whoever reads it refuses it by its mark."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, text: str, *about: str) -> str:
        """Return the text that is stored; what is empty, or could not be decoded, is stored as it is."""
        if text in ("", NOTHING) or text.startswith(MARK):
            return text
        encoded = self._codec.encode(text, json.dumps(about))
        return text if encoded == text else MARK + encoded

    def decode(self, text: str, *about: str) -> str:
        """Return the text that was encoded; one that never was, or that cannot be decoded, as it is."""
        if not text.startswith(MARK):
            return text
        try:
            return self._codec.decode(text.removeprefix(MARK), json.dumps(about))
        except BUGS:  # no other error: a time limit, or a server that is away, says nothing about the text
            return text


def load_codec(path: str) -> Codec:
    """Import a codec, and try it.

    Args:
        path: The setting ``saga_codec``.

    Raises:
        ConfigurationError: It names no codec, or one that does not give back what it has encoded; the text says what to do.
    """
    module, _, name = path.partition(":")
    subject = f"saga_codec = {path!r}"
    try:
        codec = attrgetter(name)(import_module(module))
    except ConfigurationError:
        raise
    except Exception as exc:  # whatever the module's code raises: its text may have a key
        why = f"{type(exc).__name__}: {exc}" if isinstance(exc, ImportError | AttributeError) else type(exc).__name__
        problem = f"{subject} cannot be imported: {why}"
        raise ConfigurationError(problem, _PATH) from exc
    if isinstance(codec, type) or not isinstance(codec, Codec):
        problem = f"{subject} is a class" if isinstance(codec, type) else f"{subject} lacks encode or decode"
        raise ConfigurationError(problem, f"Name an object. {_METHODS}")
    _try(codec, subject)
    return codec


def _try(codec: Codec, subject: str) -> None:
    about = json.dumps(["state", "tried"])
    try:
        encoded = codec.encode(_TRIED, about)
        is_text = isinstance(encoded, str)
        is_same = is_text and (encoded == _TRIED or codec.decode(encoded, about) == _TRIED)
    except ConfigurationError:
        raise
    except Exception as exc:
        raise ConfigurationError(f"{subject} fails: {type(exc).__name__}", _METHODS) from None
    if not is_same:
        problem = "does not decode what it has encoded" if is_text else "encodes to no text"
        raise ConfigurationError(f"{subject} {problem}", _METHODS)
    _try_foreign(codec, subject, about)


def _try_foreign(codec: Codec, subject: str, about: str) -> None:
    """Refuse a codec whose error for a text that cannot be decoded looks like an outage: one row would hold up all others."""
    try:
        codec.decode(_FOREIGN, about)
    except BUGS:
        return
    except Exception as exc:
        problem = f"{subject} raises {type(exc).__name__} for a text that it has not encoded"
        raise ConfigurationError(problem, "Have its decode raise ValueError for each text that it cannot decode") from None
