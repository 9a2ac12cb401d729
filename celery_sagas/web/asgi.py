"""The web view as an ASGI application: by itself, or mounted below a path of another one."""

import inspect
import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from anyio import CapacityLimiter, to_thread
from celery import Celery
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from celery_sagas.core.registry import registry
from celery_sagas.errors import ConfigurationError, NewerState, SagaError, StoreUnavailable
from celery_sagas.telemetry.stored import registry_of
from celery_sagas.web.access import NOBODY, Access, AccessOf
from celery_sagas.web.cache import Cache
from celery_sagas.web.forms import Tokens, check_origin, read_form
from celery_sagas.web.links import Links, root_of
from celery_sagas.web.pages.acting import act, confirmation
from celery_sagas.web.pages.aggregates import aggregates
from celery_sagas.web.pages.dead import dead_letter, dead_letters
from celery_sagas.web.pages.dead_acting import confirm_treatment, treat
from celery_sagas.web.pages.doctor import doctor
from celery_sagas.web.pages.each import act_on_each, confirm_each
from celery_sagas.web.pages.instance import instance, timeline
from celery_sagas.web.pages.listing import find, listing
from celery_sagas.web.pages.overview import overview
from celery_sagas.web.pages.records import activity, audit
from celery_sagas.web.pages.stuck import stuck
from celery_sagas.web.pages.switching import confirm_switch, switch
from celery_sagas.web.render import environment
from celery_sagas.web.security import LOOPBACK, Guard
from celery_sagas.web.sessions import session_of, set_cookie
from celery_sagas.web.visit import Page, Refused, Store, Visit
from celery_sagas.worker.celery_internals import itself
from celery_sagas.worker.runtime import runtime_of, within

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger("celery_sagas")

T = TypeVar("T")
#: Makes a page for a visit, and the parts of its path.
PageOf: TypeAlias = Callable[..., Page]
#: The pages by their paths.
PAGES: Final[dict[str, PageOf]] = {
    "/": overview,
    "/find": find,
    "/stuck": stuck,
    "/dead": dead_letters,
    "/dead/{id}": dead_letter,
    "/activity": activity,
    "/audit": audit,
    "/aggregates": aggregates,
    "/doctor": doctor,
    "/timeline": timeline,
    "/sagas/{name}": listing,
    "/instances/{id}": instance,
}
#: Those that show what one backend has.
OF_ONE_BACKEND: Final = ("/dead", "/activity", "/audit")
#: Those that ask whether something is to be done, with what does it.
ACTS: Final[dict[str, tuple[PageOf, PageOf]]] = {
    "/dead/{id}/{verb}": (confirm_treatment, treat),
    "/instances/{id}/{verb}": (confirmation, act),
    "/sagas/{name}/each/{verb}": (confirm_each, act_on_each),
    "/switches/{verb}": (confirm_switch, switch),
}
#: Seconds after which a page that is followed is asked for again, and that the stores have to answer a probe.
_FOLLOW_S, _PING_S = 5, 1.0
#: How many pages are made at once: each thread has connections of its own to the stores.
_THREADS: Final = 4
#: For how long an answer to a probe is given again. Seconds.
_PINGED_S: Final = 1.0
_UNKNOWN: Final = "It is not known whether anything was done: look at it, and at the audit, before you do it again."
_NO_ACCESS: Final = (
    "nobody may see the web view: say who may with asgi(app, access=…), a function that gets the request and returns "
    'Access("read", actor="ann"), with one of the levels none, look, read and act'
)


class Run(Protocol):
    """Calls a function that may wait for a store."""

    async def __call__(self, function: Callable[..., T], *args: Any) -> T: ...


def asgi(app: Celery, *, access: AccessOf | None = None, hosts: Sequence[str] = LOOPBACK, secret: str | None = None) -> Starlette:
    """Return the web view, an ASGI application, to be served or mounted.

    Args:
        app: The Celery app.
        access: Says what the sender of a request may do: a function, or an async one, that gets Starlette's request and returns
            an ``Access``, or ``None``. Without it nobody sees anything.
        hosts: The names by which browsers reach it, without ports, such as ``["ops.example.com"]``; ``"*"`` is any.
        secret: Signs the forms of those who may act: the same in all processes that serve it; ``None``: there is one process.
    """
    app = itself(app)
    probes = _Probes(app)
    site = application(app, access, hosts, secret, _in_threads(_THREADS))
    site.routes.extend([Route("/livez", _alive, methods=["GET"]), Route("/readyz", probes.ready, methods=["GET"])])
    return site


def application(app: Celery, access: AccessOf | None, hosts: Sequence[str], secret: str | None, run: Run) -> Starlette:
    """Return the pages, without what programs ask whether it lives; ``run`` calls what waits for a store."""
    site = _Site(app, access, Tokens(secret), run)
    routes = [Route(path, partial(site.show, page), methods=["GET"]) for path, page in PAGES.items()]
    for path, (ask, do) in ACTS.items():
        routes += [Route(path, partial(site.show, ask), methods=["GET"]), Route(path, partial(site.act, do), methods=["POST"])]
    routes += [
        Route("/metrics", site.metrics, methods=["GET"]),
        Route("/static/sagas.css", _style, methods=["GET"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={404: site.missing, 405: site.missing},
    )


def _in_threads(most: int) -> Run:
    """Return what calls functions in threads, so many at once."""
    limiter = CapacityLimiter(most)

    async def run(function: Callable[..., T], *args: Any) -> T:
        return await to_thread.run_sync(function, *args, limiter=limiter)

    return run


class _Probes:
    """What answers programs that ask whether it lives."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._cache = Cache()
        self._run = _in_threads(1)  # of their own: pages may wait for a store

    async def ready(self, request: Request) -> Response:
        """Answer whether the stores answer."""
        is_ready = await self._run(self._cache.get, "ready", _PINGED_S, self._ping)
        return PlainTextResponse("ready\n" if is_ready else "a store is away\n", 200 if is_ready else 503)

    def _ping(self) -> bool:
        try:
            backends = list(runtime_of(self._app).backends)
            within(_PING_S, lambda: [backend.outbox.time() for backend in backends])
        except (SagaError, TimeoutError):
            return False
        return True


class _Site:
    """What answers requests."""

    def __init__(self, app: Celery, access: AccessOf | None, tokens: Tokens, run: Run) -> None:
        self._app = app
        self._tokens = tokens
        self._access = access
        self._run = run
        self._cache = Cache()
        self._registry: CollectorRegistry | None = None
        self._templates = environment()
        self._has_said = False

    async def show(self, page: PageOf, request: Request) -> Response:
        """Answer with a page."""
        access = await self._access_of(request)
        return await self._run(self._answered, request, access, partial(self._page, page))

    async def act(self, page: PageOf, request: Request) -> Response:
        """Do what a form says, if it is one of ours."""
        access = await self._access_of(request)
        if not access.may("act"):
            return await self._run(self._refusal, request, access, Refused(403, "You may not act here."))
        try:
            check_origin(request.headers)
            form = await read_form(request)
            self._tokens.check(form.get("token", ""), session_of(request), access.actor, _path(request))
        except Refused as exc:
            return await self._run(self._refusal, request, access, exc)
        return await self._run(self._answered, request, access, partial(self._page, partial(page, form=form)))

    async def metrics(self, request: Request) -> Response:
        """Answer with the gauges of what is stored, to a scrape of Prometheus."""
        access = await self._access_of(request)
        return await self._run(self._answered, request, access, self._metrics)

    async def missing(self, request: Request, error: Exception) -> Response:
        """Answer that there is no such page, or that it is not asked for in this way."""
        status = getattr(error, "status_code", 404)
        sentence = "There is no such page." if status == 404 else "This cannot be done here."
        access = await self._access_of(request)
        return await self._run(self._refusal, request, access, Refused(status, sentence))

    async def _access_of(self, request: Request) -> Access:
        if self._access is None:
            if not self._has_said:
                self._has_said = True
                logger.warning(_NO_ACCESS)
            return NOBODY
        if inspect.iscoroutinefunction(self._access):
            given = await self._access(request)
        else:
            given = await self._run(self._access, request)
            given = await given if inspect.isawaitable(given) else given
        if given is not None and not isinstance(given, Access):
            raise TypeError(f"access= returned {type(given).__name__}, and not an Access or None")
        return given or NOBODY

    def _answered(self, request: Request, access: Access, answer: Callable[[Request, Access], Response]) -> Response:
        """Answer whoever may look; say what went wrong, if it did."""
        if not access.may("look"):
            return self._refusal(request, access, Refused(403, "You have no access to this page."))
        try:
            self._app.loader.import_default_modules()
            self._app.finalize()
            return answer(request, access)
        except Refused as exc:
            return self._refusal(request, access, exc)
        except NewerState as exc:
            return self._refusal(request, access, Refused(409, str(exc)))
        except StoreUnavailable as exc:
            sentence = f"{exc} {_UNKNOWN}" if request.method == "POST" else str(exc)
            return self._refusal(request, access, Refused(503, sentence), self._store_of(request, access))
        except (SagaError, ValueError) as exc:
            status = 500 if isinstance(exc, ConfigurationError) else 400
            return self._refusal(request, access, Refused(status, str(exc)))

    def _metrics(self, request: Request, access: Access) -> Response:
        if self._registry is None:
            self._registry = registry_of(runtime_of(self._app))
        exposition = import_module("prometheus_client.exposition")
        encode, media_type = exposition.choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": media_type})

    def _store_of(self, request: Request, access: Access) -> Store | None:
        """Return the backend that a page shows, if others can be chosen in its place."""
        return self._visit(request, access).store() if _path(request) in OF_ONE_BACKEND else None

    def _visit(self, request: Request, access: Access) -> Visit:
        return Visit(runtime_of(self._app), access, _links(request), self._cache, dict(request.query_params))

    def _page(self, page: PageOf, request: Request, access: Access) -> Response:
        made = page(self._visit(request, access), **_parts_for(page, request))
        if made.location:
            return RedirectResponse(made.location, 303)
        if _wants_json(request):
            return JSONResponse(made.facts, made.status)
        follows = request.query_params.get("follow") == "1"
        response = self._html(request, access, made.template, made.context, made.status, follows=follows)
        if follows:
            response.headers["Refresh"] = str(_FOLLOW_S)
        return response

    def _refusal(self, request: Request, access: Access, refused: Refused, store: Store | None = None) -> Response:
        if _wants_json(request):
            return JSONResponse({"error": refused.sentence}, refused.status)
        context = {"status": refused.status, "sentence": refused.sentence, "store": store}
        return self._html(request, access, "refused.html", context, refused.status)

    def _html(
        self, request: Request, access: Access, template: str, context: Any, status: int, *, follows: bool = False
    ) -> Response:
        session = session_of(request) or secrets.token_urlsafe(32)
        about = {
            "token": self._tokens.make(session, access.actor, _path(request)) if access.may("act") else "",
            "link": _links(request).to,
            "access": access,
            "path": _path(request),
            "query": {name: value for name, value in request.query_params.items() if name != "did"},
            "follows": follows,
            "saga_names": list(registry.sagas) if access.may("look") else [],
        }
        response = HTMLResponse(self._templates.get_template(template).render({**about, **context}), status)
        if access.may("act") and not session_of(request):
            set_cookie(request, response, session)
        return response


def _links(request: Request) -> Links:
    return Links(root_of(request).rstrip("/"))


def _parts_for(page: PageOf, request: Request) -> dict[str, str]:
    """Return the parts of the path that a page takes; those of the path at which the pages are mounted are for ``access=``."""
    taken = inspect.signature(page).parameters.keys() - {"visit", "form"}
    return {name: value for name, value in request.path_params.items() if name in taken}


def _path(request: Request) -> str:
    """Return the path below that at which the pages are mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")) or "/"


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


async def _style(request: Request) -> Response:
    return Response(_STYLE, media_type="text/css", headers={"Cache-Control": "private, max-age=3600"})


async def _alive(request: Request) -> Response:
    return PlainTextResponse("alive\n")


_STYLE: Final = files("celery_sagas.web").joinpath("static/sagas.css").read_text(encoding="utf-8")
