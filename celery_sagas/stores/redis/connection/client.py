"""One process's client: scripts and commands, each sent until it is answered, within bounds."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import AuthenticationError, AuthorizationError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from celery_sagas.errors import StoreError, StoreUnavailable
from celery_sagas.stores.redis.connection.calls import ASKING, Call, Trip, add_error, in_trips
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


@dataclass(slots=True)
class _Tries:
    """How often some calls were sent."""

    deadline: float  #: when they are not sent again
    failures: int = 0

    def timeout(self) -> float:
        """Return the time that is left for a repeat; the first time the options hold, so that the connection can be kept."""
        return max(self.deadline - time.monotonic(), _SHORTEST_TIMEOUT) if self.failures else math.inf


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
        return self.send(self.prepare(script, keys, args, usual=usual, answer=answer, commits=commits))

    def prepare(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Word],
        *,
        usual: tuple[Word, ...] = (),
        answer: str = "",
        commits: bool = False,
    ) -> Call:
        """Return the call of a script, to be sent once; see ``run``."""
        try:
            request = pack_call(script.sha, keys, args, answer, usual)
        except UnicodeError as exc:
            raise self.errors.translate(exc, script.name, keys) from exc
        return Call(script.name, request, keys, script, commits and self.has_replicas)

    def prepare_wait(self, key: str) -> Call:
        """Return a call that waits until as many replicas as the option says have all earlier writes beside a key."""
        return Call("WAIT", pack(_touch(key)), [key], waits=self.has_replicas)

    def send(self, call: Call) -> Any:
        """Send a call and return its reply."""
        [answer] = self.send_many([call])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def send_many(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls in as few trips as possible; return the reply to each, or the ``StoreError`` in its place.

        They share the bounds of one call: a server that is away is waited for once, and not for each of them.
        """
        tries = _Tries(time.monotonic() + self._options.total_timeout)
        waiting = calls
        while waiting:
            self._try(waiting, tries)
            failed = [(call, call.error) for call in waiting if call.error is not None]
            waiting = self._to_repeat(failed, tries) if failed else ()
        return [call.reply if call.error is None else self._translated(call, call.error) for call in calls]

    def on_masters(self, *words: Word) -> dict[str, Any]:
        """Run a command on every master; return the replies by the masters' names, as they may be shown."""
        name = str(words[0])
        try:
            masters = self._masters()
        except DRIVER_ERRORS as exc:
            raise self.errors.translate(exc, name) from exc
        return {title: self.send(Call(name, pack(words), server=server)) for title, server in masters.items()}

    @property
    def has_replicas(self) -> bool:
        """Whether commits wait for replicas."""
        return self._options.wait_replicas > 0

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

    def _try(self, calls: Sequence[Call], tries: _Tries) -> None:
        """Send calls once, and set the reply or the error of each."""
        try:
            by_server = self._by_server(calls)
        except DRIVER_ERRORS as exc:
            self._fail(calls, exc)
            return
        for server, own in by_server.items():
            sent = 0
            try:
                for part in in_trips(own):
                    self._send_trip(server, part, tries)
                    sent += len(part)
            except DRIVER_ERRORS as exc:
                self._fail(own[sent:], exc)

    def _send_trip(self, server: Server, calls: Sequence[Call], tries: _Tries) -> None:
        """Send calls in one trip, with what they need before and after them."""
        waiting = [call for call in calls if call.waits] if self.has_replicas else []
        trip = Trip(calls, self._after(waiting[0], tries) if waiting else ())
        for observer in self.observers:
            observer(trip.name)
        replies = trip.read(server.ask(trip.requests, tries.timeout()))
        if waiting:
            add_error(waiting, replies)
            self._check_confirmed(waiting, replies[-1])

    def _fail(self, calls: Sequence[Call], error: Exception) -> None:
        self.losses += isinstance(error, LostConnection)
        for call in calls:
            call.error = error

    def _after(self, call: Call, tries: _Tries) -> list[bytes]:
        """Return the commands that wait for the replicas.

        WAIT is about what its own connection wrote last. A repeat of a committed call writes nothing, and uses another
        connection, so something must be written.
        """
        if not tries.failures:
            return [self._wait]
        return [*([ASKING] if call.is_asking else ()), pack(_touch(call.keys[0])), self._wait]

    def _check_confirmed(self, calls: Sequence[Call], replicas: int) -> None:
        wanted, seconds = self._options.wait_replicas, self._options.wait_timeout
        for call in calls:
            if call.error is None and replicas < wanted:
                problem = f"{replicas} replicas confirmed a commit within {seconds:g} s, and wait_replicas asks for {wanted}"
                call.error = StoreUnavailable(self.errors.shown, problem)

    def _to_repeat(self, failed: Sequence[tuple[Call, Exception]], tries: _Tries) -> list[Call]:
        """Return those of the failed calls that are to be sent again, after a pause if the errors of some have to pass."""
        ready, passing, codes = list[Call](), list[Call](), set[str]()
        for call, error in failed:
            code = code_of(error)
            if self._is_ready(call, code, error):
                ready.append(call)
            elif _may_pass(error, code):
                passing.append(call)
                codes.add(code)
        return [*ready, *passing] if passing and self._wait_until_passed(codes, tries) else ready

    def _is_ready(self, call: Call, code: str, error: Exception) -> bool:
        """Get a call ready to be sent again at once, with its script or to another node, if its error is about that."""
        if code == "NOSCRIPT" and call.script and not call.is_unknown:
            call.is_unknown = True
            return True
        return self._is_redirected(call, code, error)

    def _wait_until_passed(self, codes: set[str], tries: _Tries) -> bool:
        """Wait for errors to pass, within the bounds; return whether they may have."""
        tries.failures += 1
        pause = 0 if tries.failures == 1 else min(_FIRST_PAUSE * 4 ** (tries.failures - 2), _LONGEST_PAUSE)
        if tries.failures > self._options.retries or time.monotonic() + pause >= tries.deadline:
            return False
        self._recover(codes)
        time.sleep(pause)
        return True

    def _translated(self, call: Call, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        translated = self.errors.translate(error, call.name, call.keys)
        translated.__cause__ = error
        return translated

    def _by_server(self, calls: Sequence[Call]) -> Mapping[Server, Sequence[Call]]:
        """Return the calls by the servers that have their keys; set the error of those whose keys none has."""
        return {calls[0].server or self._server: calls}

    def _masters(self) -> dict[str, Server]:
        return {"the server": self._server}

    def _is_redirected(self, call: Call, code: str, error: Exception) -> bool:
        """Turn to the node that an error names, if it names one."""
        return False

    def _recover(self, codes: set[str]) -> None:
        """Do what may help before calls are sent again: a server that has become read-only is no master any more."""
        if "READONLY" in codes:
            self._server.connections.close_idle()


def _may_pass(error: Exception, code: str) -> bool:
    if isinstance(error, ResponseError):
        return code in _PASSING
    is_lost = isinstance(error, LostConnection | NoAnswer) and not isinstance(error, AuthenticationError | AuthorizationError)
    return is_lost and not remedy_for(error)


def _touch(key: str) -> list[Word]:
    """Return the command that writes nothing of consequence beside a key, so that WAIT has something to wait for."""
    return ["HSET", f"{key.partition('}')[0]}}}:waits", "last", ""]
