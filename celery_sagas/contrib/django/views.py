"""The web view for the users of a project, by their permissions."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from asgiref.sync import async_to_sync, sync_to_async
from celery import Celery
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from celery_sagas.errors import needs_extra
from celery_sagas.worker.celery_internals import current_app

with needs_extra("web", "the web view"):
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import Message

    from celery_sagas.web.access import LEVELS, NOBODY, Access
    from celery_sagas.web.asgi import T, application

#: Where Starlette's request has the one of Django.
_DJANGO: Final = "celery_sagas.django"


class _SeeOther(HttpResponseRedirect):
    status_code = 303


@csrf_exempt  # its forms have tokens of their own
def sagas(request: HttpRequest, below: str, **above: object) -> HttpResponse:
    """Answer with a page of the web view; whoever has not logged in yet does so first.

    Args:
        request: The request.
        below: The path below that at which the web view is.
        **above: The parts of that one.

    Raises:
        ImproperlyConfigured: Nobody can log in to this project.
    """
    user = _user_of(request)
    answer = _answer(_asked(_site_of(current_app()), request, below))
    if answer.status_code == 403 and request.method == "GET" and not user.is_authenticated and request.accepts("text/html"):
        return redirect_to_login(request.get_full_path())
    return answer


def _user_of(request: HttpRequest) -> Any:
    """Return the user who sends a request.

    Raises:
        ImproperlyConfigured: Django does not know it.
    """
    if not hasattr(request, "user"):
        raise ImproperlyConfigured("the web view needs AuthenticationMiddleware in MIDDLEWARE: it shows a user what is permitted")
    return request.user


def _access(request: Request) -> Access:
    """Return the highest level that a user's permissions grant."""
    user = _user_of(request.scope[_DJANGO])
    granted = (level for level in reversed(LEVELS[1:]) if user.has_perm(f"celery_sagas.{level}"))
    return next((Access(level, actor=user.get_username()) for level in granted), NOBODY)


@cache
def _site_of(app: Celery) -> Starlette:
    secret = salted_hmac("celery_sagas.contrib.django", "forms", algorithm="sha256").hexdigest()
    return application(app, _access, ["*"], secret, _in_the_views_thread)  # Django has looked at the host


async def _in_the_views_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function where the connections of this request to Django's databases are."""
    called: T = await sync_to_async(function, thread_sensitive=True)(*args)
    return called


class _Answered(NamedTuple):
    status: int
    headers: Headers
    body: bytes


def _asked(site: Starlette, request: HttpRequest, below: str) -> _Answered:
    """Hand a request of Django's over to an ASGI application."""
    headers = {**request.headers, "Host": request.get_host()}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": request.path.removesuffix(below).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        _DJANGO: request,
    }
    sent = [{"type": "http.request", "body": request.body}]
    answered: list[Message] = []

    async def receive() -> Message:
        return sent.pop() if sent else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answered.append(message)

    async_to_sync(site)(scope, receive, send)
    start, *parts = answered
    return _Answered(start["status"], Headers(raw=start["headers"]), b"".join(part.get("body", b"") for part in parts))


def _answer(answered: _Answered) -> HttpResponse:
    if answered.status == _SeeOther.status_code:
        response: HttpResponse = _SeeOther(answered.headers["location"])
    else:
        response = HttpResponse(answered.body, status=answered.status)
    for name, value in answered.headers.items():
        if name == "set-cookie":
            response.cookies.load(value)
        elif name != "content-length":
            response.headers[name] = value
    return response
