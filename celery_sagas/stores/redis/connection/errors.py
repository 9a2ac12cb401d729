"""The one place where redis-py's errors become the library's."""

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

from redis.exceptions import RedisError, ResponseError

from celery_sagas.errors import ConfigurationError, StoreError, StoreUnavailable
from celery_sagas.stores.secrets import hide

#: What a call may raise: the driver's, the operating system's, and texts that are no UTF-8.
DRIVER_ERRORS: Final = (RedisError, OSError, UnicodeError)

#: The code that a server put before its text, of the classes for which redis-py takes it away.
_CODES: Final[Mapping[str, str]] = {
    "AskError": "ASK",
    "AuthenticationError": "WRONGPASS",
    "AuthenticationWrongNumberOfArgsError": "WRONGPASS",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
#: Errors that repeat however often a call is sent: the cause is not the server's state, but the call.
_REFUSED: Final = frozenset({"", "ERR", "CROSSSLOT", "EXECABORT", "NOPROTO"})
_WRONG_TYPE: Final = "WRONGTYPE"

_CODE: Final = re.compile(r"([A-Z]{2,}) ")
#: Redis 6.2 puts the code of a command that failed in a script after the line.
_CODE_IN_SCRIPT: Final = re.compile(r"user_script: ?\d+: -?([A-Z]{2,}) ")

_USER = "Write the user and the password into saga_backend (redis://user:password@host:6379/0), %-escaped"
_RIGHTS = (
    "Let the user run EVALSHA, SCRIPT|LOAD, INFO and WAIT, and in scripts the commands of hashes, lists, sorted sets, GET, SET "
    "and TIME, on the keys that begin with {<saga_prefix>: (with {celery-sagas: where there is no prefix)"
)
_DATABASE = "Let saga_backend name a database that the server has: 0 to 15, unless its setting `databases` says otherwise"
_CLUSTER = "Begin saga_backend with redis+cluster://"
_TLS = (
    "Begin saga_backend with rediss:// exactly if the server speaks TLS on this port, and set ssl_ca_certs to the authority that "
    "signed its certificate"
)
#: What to set, by the code.
_REMEDIES: Final[Mapping[str, str]] = {"WRONGPASS": _USER, "NOAUTH": _USER, "NOPERM": _RIGHTS, "MOVED": _CLUSTER, "ASK": _CLUSTER}
#: What to set, by a part of the text.
_REMEDIES_BY_TEXT: Final[Mapping[str, str]] = {
    "without any password configured": "Leave the password out of saga_backend: the server has none",
    "no password is set": "Leave the password out of saga_backend: the server has none",
    "Authentication required": _USER,
    "DB index": _DATABASE,
    "The user executing the script can't": _RIGHTS,
    "cluster support disabled": "Begin saga_backend with redis:// or rediss://: the server is not part of a cluster",
}


class RedisErrors:
    """Translates redis-py's errors at one location.

    Args:
        shown: The URL as it may be shown.
        secrets: The values that no text may repeat.
    """

    def __init__(self, shown: str, secrets: tuple[str, ...]) -> None:
        self.shown = shown
        self._secrets = secrets

    def translate(self, error: Exception, what: str, keys: Sequence[str] = ()) -> StoreError:
        """Return the error to raise from a driver's.

        Args:
            error: The driver's.
            what: The script or the command that failed.
            keys: What it was about.
        """
        code = code_of(error)
        if code == _WRONG_TYPE:
            return StoreError(
                f"One of the keys of {what} in {self.shown} holds what the saga backend never writes there: {', '.join(keys)}. "
                "Look at them with TYPE; set saga_prefix or another database, or remove what does not belong there."
            )
        if remedy := remedy_for(error):
            return StoreUnavailable(self.shown, f"{self.text_of(error)}. {remedy}")
        if isinstance(error, UnicodeError) or (code in _REFUSED and isinstance(error, ResponseError)):
            return StoreError(f"The saga backend {self.shown} refused {what}: {self.text_of(error)}.")
        return StoreUnavailable(self.shown, self.text_of(error))

    def text_of(self, error: Exception) -> str:
        """Return the first line of an error's text, without secrets."""
        line = next(iter(str(error).splitlines()), "").rstrip(".")
        return hide(f"{type(error).__name__}: {line}" if line else type(error).__name__, self._secrets)

    def as_configuration(self, error: StoreUnavailable) -> StoreError | ConfigurationError:
        """Return, before anything is consumed, the error for a person who can change the settings."""
        cause = error.__cause__
        remedy = remedy_for(cause) if isinstance(cause, Exception) else ""
        if not isinstance(cause, Exception) or not remedy:
            return error
        return ConfigurationError(f"the saga backend {self.shown} refuses: {self.text_of(cause)}", remedy)


def code_of(error: Exception) -> str:
    """Return the code of a server's error; empty if it gave none, or is not the cause."""
    if known := _CODES.get(type(error).__name__):
        return known
    text = str(error)
    found = _CODE_IN_SCRIPT.search(text) or _CODE.match(text)
    return found[1] if found else ""


def remedy_for(error: Exception) -> str:
    """Return what to set, if a setting is wrong."""
    below = error.__context__
    if isinstance(below, ssl.SSLError) and not isinstance(below, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _TLS
    text = str(error)
    by_text = (remedy for part, remedy in _REMEDIES_BY_TEXT.items() if part in text)
    return next(by_text, "") or _REMEDIES.get(code_of(error), "")
