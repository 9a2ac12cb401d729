"""One process's client: scripts and commands, each sent until it is answered, within bounds."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from redis.exceptions import AuthenticationError, AuthorizationError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.redis.connection.connections import Resolve, Server, Word, pack, pack_call
from celery_sagas.stores.redis.connection.errors import DRIVER_ERRORS, RedisErrors, code_of, remedy_for
from celery_sagas.stores.redis.connection.location import RedisLocation
from celery_sagas.stores.redis.connection.options import Options
from celery_sagas.stores.redis.connection.scripts import Script

#: A server that restarts, a fail-over, a cluster that moves its slots: what was refused may be granted soon.
_PASSING: Final = frozenset({"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN"})
#: seconds before the repeats: none before the first, since most often only a connection was stale
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
#: seconds that a call is given in any case
_SHORTEST_TIMEOUT: Final = 0.1
_ASKING: Final = pack(["ASKING"])


@dataclass(slots=True)
class Call:
    """A script or a command, while it is being sent."""

    name: str
    request: bytes
    keys: Sequence[str]
    script: Script | None  #: to be loaded, should the server not know it
    waits: bool  #: for replicas
    deadline: float  #: when it is not sent again
    server: Server | None = None  #: the only one to ask, else the one that has the keys
    asked: Server | None = None  #: the one that was asked last
    is_unknown: bool = False  #: the server does not know the script
    is_asking: bool = False  #: the server does not own the slot yet
    failures: int = 0
    redirects: int = 0


class Client:
    """The client of one server, wherever that is at the moment.

    Nothing is connected before the first call. Threads and greenlets may share it; it survives a fork.

    Args:
        resolve: Returns the server's address, before each new connection.
        location: How to connect.
        options: The limits.
    """

    def __init__(self, resolve: Resolve, location: RedisLocation, options: Options) -> None:
        #: Called with a script's or a command's name before each round trip.
        self.observers: list[Callable[[str], None]] = []
        #: How many connections were lost until now: a server that was restarted may have forgotten everything.
        self.losses = 0
        self.errors = RedisErrors(location.shown, location.secrets + options.secrets())
        self._options = options
        self._location = location
        self._server = Server(resolve, location, options)
        self._wait = pack(["WAIT", options.wait_replicas, int(options.wait_timeout * 1000)])

    def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Word],
        *,
        usual: tuple[Word, ...] = (),
        answer: str = "",
        commits: bool = False,
    ) -> Any:
        """Run a script and return its reply as it comes: bytes, numbers, ``None`` and lists.

        A call whose reply is lost is sent again: the script must answer a repeat as it answered the first time.

        Args:
            script: Which one.
            keys: All of its keys, of one hash tag; but for the next one.
            args: Its arguments.
            usual: The arguments before them, if other calls have them too; not together with ``answer``.
            answer: The last of its keys, under which this call's answer is kept.
            commits: Whether its writes must be confirmed by as many replicas as the option ``wait_replicas`` says.
        """
        return self._call(script.name, partial(pack_call, script.sha, keys, args, answer, usual), keys, script, waits=commits)

    def wait_for_replicas(self, key: str) -> None:
        """Wait until as many replicas as the option ``wait_replicas`` says have all earlier writes beside a key."""
        if self._options.wait_replicas:
            self._call("WAIT", partial(pack, _touch(key)), [key], waits=True)

    def on_masters(self, *words: Word) -> dict[str, Any]:
        """Run a command on every master; return the replies by the masters' names, as they may be shown."""
        name = str(words[0])
        try:
            masters = self._masters()
        except DRIVER_ERRORS as exc:
            raise self.errors.translate(exc, name) from exc
        return {title: self._call(name, partial(pack, words), server=server) for title, server in masters.items()}

    @property
    def total_timeout(self) -> float:
        """The time that one call may take. Seconds."""
        return self._options.total_timeout

    def holder_of(self, key: str) -> object:
        """Identify the server that has a key, without a request: a server that is silent is silent for all of its keys."""
        return self._server

    def close(self) -> None:
        """Close every connection."""
        self._server.connections.close()

    def _call(
        self,
        name: str,
        packed: Callable[[], bytes],
        keys: Sequence[str] = (),
        script: Script | None = None,
        *,
        waits: bool = False,
        server: Server | None = None,
    ) -> Any:
        try:
            deadline = time.monotonic() + self._options.total_timeout
            waits = waits and self._options.wait_replicas > 0
            call = Call(name, packed(), keys, script, waits, deadline, server)
            while True:
                for observer in self.observers:
                    observer(name)
                try:
                    return self._send(call)
                except (LostConnection, NoAnswer, ResponseError) as exc:
                    self._prepare_repeat(call, exc)
        except DRIVER_ERRORS as exc:
            raise self.errors.translate(exc, name, keys) from exc

    def _send(self, call: Call) -> Any:
        """Send a call in one trip, with what it needs before and after it."""
        server = call.asked = call.server or self._server_of(call.keys)
        before, after = self._before(call), self._after(call)
        replies = server.ask([*before, call.request, *after], self._timeout(call))
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        if call.waits:
            self._check_confirmed(replies[-1])
        return replies[len(before)]

    def _timeout(self, call: Call) -> float:
        """Return the time that is left for a repeat; the first time the options hold, so that the connection can be kept."""
        return max(call.deadline - time.monotonic(), _SHORTEST_TIMEOUT) if call.failures else math.inf

    def _before(self, call: Call) -> list[bytes]:
        before = [pack(["SCRIPT", "LOAD", call.script.source])] if call.is_unknown and call.script else []
        return [*before, _ASKING] if call.is_asking else before

    def _after(self, call: Call) -> list[bytes]:
        """Return the commands that wait for the replicas.

        WAIT is about what its own connection wrote last. A repeat of a committed call writes nothing, and uses another
        connection, so something must be written.
        """
        if not call.waits:
            return []
        return [pack(_touch(call.keys[0])), self._wait] if call.failures else [self._wait]

    def _check_confirmed(self, replicas: int) -> None:
        wanted, seconds = self._options.wait_replicas, self._options.wait_timeout
        if replicas < wanted:
            problem = f"{replicas} replicas confirmed a commit within {seconds:g} s, and wait_replicas asks for {wanted}"
            raise StoreUnavailable(self.errors.shown, problem)

    def _prepare_repeat(self, call: Call, error: Exception) -> None:
        """Get ready to send a call again after an error that may pass; raise it if it may not, or the bounds are reached."""
        code = code_of(error)
        if code == "NOSCRIPT" and call.script and not call.is_unknown:
            call.is_unknown = True
            return
        if self._is_redirected(call, code, error):
            return
        call.failures += 1
        self.losses += isinstance(error, LostConnection)
        pause = 0 if call.failures == 1 else min(_FIRST_PAUSE * 4 ** (call.failures - 2), _LONGEST_PAUSE)
        is_over = call.failures > self._options.retries or time.monotonic() + pause >= call.deadline
        if is_over or not _may_pass(error, code):
            raise error
        self._recover(call, code)
        time.sleep(pause)

    def _server_of(self, keys: Sequence[str]) -> Server:
        return self._server

    def _masters(self) -> dict[str, Server]:
        return {"the server": self._server}

    def _is_redirected(self, call: Call, code: str, error: Exception) -> bool:
        """Turn to the node that an error names, if it names one."""
        return False

    def _recover(self, call: Call, code: str) -> None:
        """Do what may help before a call is sent again: a server that has become read-only is no master any more."""
        if code == "READONLY":
            self._server.connections.close_idle()


def _may_pass(error: Exception, code: str) -> bool:
    if isinstance(error, ResponseError):
        return code in _PASSING
    return not isinstance(error, AuthenticationError | AuthorizationError) and not remedy_for(error)


def _touch(key: str) -> list[Word]:
    """Return the command that writes nothing of consequence beside a key, so that WAIT has something to wait for."""
    return ["HSET", f"{key.partition('}')[0]}}}:waits", "last", ""]
