"""Workers that are killed at random moments, and replaced."""

import os
import random
import signal
import time

from tests.integration.worker import Deployment, Worker

#: A kill comes so many seconds after it was asked for, at most.
PAUSE_S = 1.0


class Crew:
    """Workers, one for each queue that is given; one that is killed is replaced.

    On Redis the last one loses processes of its pool only: nobody would repeat what kombu has popped and lost.
    """

    def __init__(
        self,
        deployment: Deployment,
        chance: random.Random,
        queues: list[str],
        spare_last: bool,
        pause_s: float = PAUSE_S,
        processes: int = 2,
    ) -> None:
        self._deployment = deployment
        self._chance = chance
        self._queues = queues
        self._spare_last = spare_last
        self._pause_s = pause_s
        self._processes = processes  # of each
        self._workers = [self._start(queue) for queue in queues]
        #: The processes that were killed, with those of their pools.
        self.dead: set[int] = set()

    def wait_ready(self) -> None:
        """Wait until all of them consume."""
        for worker in self._workers:
            worker.wait_ready()

    def kill_one(self, is_whole: bool) -> bool:
        """Kill any whole worker that may be, or any process of a pool, at a random moment; return whether there was one."""
        time.sleep(self._chance.uniform(0, self._pause_s))  # a moment, not an outcome
        position = self._chance.randrange(len(self._workers) - (is_whole and self._spare_last))
        if not is_whole:
            children = self._workers[position].children()
            return bool(children) and self.kill_process(self._chance.choice(children))
        self._workers[position].freeze()  # so that it starts no process that nobody knows to be dead
        self.dead.update(self._workers[position].children())
        self._workers[position].kill()
        self._workers[position] = self._start(self._queues[position])
        return True

    def kill_process(self, pid: int) -> bool:
        """Kill a process of a pool; return whether it was there."""
        self.dead.add(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended
            return False
        return True

    def _start(self, queue: str) -> Worker:
        return self._deployment.start("prefork", self._processes, queue=queue, level="WARNING")
