"""Forms: each has a token, which is good for its session, its visitor and its address alone; what is sent is bounded."""

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.datastructures import Headers
from starlette.requests import Request

from celery_sagas.web.visit import Refused

#: How large a form may be, in bytes, and how many fields it may have.
MOST_BYTES: Final = 1_000_000
_FIELDS: Final = 20
#: For how long a token is good. Seconds.
_GOOD_S: Final = 3_600
_URLENCODED: Final = "application/x-www-form-urlencoded"


class Verb(NamedTuple):
    """What a form asks whether it is to be done."""

    title: str
    says: str  #: what it does
    is_grave: bool  #: whether it cannot be taken back, or holds others up


class Tokens:
    """Makes the tokens of forms, and knows them again.

    Args:
        secret: Signs them; ``None``: another one in each process.
    """

    def __init__(self, secret: str | None) -> None:
        self._signer = URLSafeTimedSerializer(secret or secrets.token_hex(32), salt="celery_sagas.web")

    def make(self, session: str, actor: str, path: str) -> str:
        """Return the token of a form."""
        return self._signer.dumps([session, actor, path])

    def check(self, token: str, session: str, actor: str, path: str) -> None:
        """Refuse a token that is not of this form.

        Raises:
            Refused: It is none, or of another session, visitor or address, or too old.
        """
        try:
            known = self._signer.loads(token, max_age=_GOOD_S) if session else None
        except BadData:
            known = None
        if known != [session, actor, path]:
            raise Refused(403, "This form is not good any more, or not yours. Nothing was done: open its page again.")


def check_origin(headers: Headers) -> None:
    """Refuse a form that another site has sent, as far as the browser says it.

    Browsers that say ``Sec-Fetch-Site`` have ``null`` as the origin of our own pages, since these have no referrer.

    Raises:
        Refused: It has.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_ours = origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()
    is_nameless = origin == "null" and site == "same-origin"
    if site not in (None, "same-origin") or not (is_ours or is_nameless):
        raise Refused(403, "Another site has sent this form. Nothing was done.")


async def read_form(request: Request) -> Mapping[str, str]:
    """Return what a form has sent.

    Raises:
        Refused: It is none, or too large.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _URLENCODED:
        raise Refused(415, "This is no form.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Refused(413, f"A form may have {MOST_BYTES:,} bytes. Nothing was done: use the command line for more.")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS)
    except ValueError as exc:
        raise Refused(400, "This form cannot be read. Nothing was done.") from exc
    if len({name for name, _ in pairs}) != len(pairs):
        raise Refused(400, "This form has a field twice. Nothing was done.")
    return {name: value.replace("\r\n", "\n") for name, value in pairs}
