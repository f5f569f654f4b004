"""Calls to nodes of a Ray cluster: sent all at once, answered as they are done, sent again where a node is lost."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from perinvfl.cluster.board import Board, Message
from perinvfl.cluster.node import Answer, Call, carry_out
from perinvfl.errors import Hindered
from perinvfl.runs.progress import Tasks

MOST_LOST = 3  # times that a call may be lost before the reason is looked for in itself
PAUSE = 0.2  # seconds between looks at what nodes tell
NODES_EVERY = 2.0  # seconds between looks at which nodes there are
LAST_MESSAGE = 5.0  # seconds that a node waits for its last message to arrive
FAR_AWAY = "The Ray cluster no longer answers ({why}). What is finished is kept: the same command resumes."


def on_node(call: Call, board: Any, key: int, attempt: int, *extra: Any) -> Answer:
    """The task that Ray runs."""
    import ray

    posted: list[Any] = []
    why = ""

    def send(messages: list[Message]) -> str:
        nonlocal why
        posted.append(board.post.remote(key, attempt, messages))
        while len(posted) > 1 and ray.wait(posted[:1], timeout=0)[0]:  # what is not answered yet is asked for later
            with suppress(ray.exceptions.RayError):
                why = ray.get(posted[0]) or why
            del posted[0]
        return why

    answer = carry_out(call, send, extra)
    if posted:
        ray.wait(posted[-1:], timeout=LAST_MESSAGE)  # before the answer, which ends the progress
    return answer


@dataclass
class Waiting:
    """A call that is not answered yet."""

    subject: Any  # what it is about, for who sent it
    call: Call
    extra: list[Any]
    gpus: int
    attempt: int = 0
    started: bool = False


@dataclass
class Calls:
    """heard: takes messages with their subject; lost: is told what begins again; count: how far all is."""

    ray: Any
    heard: Callable[[Any, Message], None]
    lost: Callable[[Any, str], None]
    count: Callable[[Tasks], None]
    waiting: dict[int, Waiting] = field(default_factory=dict)
    refs: dict[Any, int] = field(default_factory=dict)  # Ray's names of what is under way
    done: int = 0
    nodes: int = 0
    looked: float = -NODES_EVERY
    told: Tasks | None = None
    taking: Any = None  # messages that were asked for, and are not here yet

    def __post_init__(self) -> None:
        near = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self.ray.get_runtime_context().get_node_id(), soft=True
        )
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": near}
        self.board = self.ray.remote(Board).options(**options).remote()
        self.task = self.ray.remote(on_node)

    def answers(self, calls: Iterable[Waiting], at_once: int) -> Generator[tuple[Any, Answer], None, None]:
        """Each subject with its answer, in the order they are done.

        at_once: how many calls may be waited for; 0 for all. `calls` may end, and have more once others are answered.
        """
        left, number = iter(calls), 0
        try:
            while True:
                while (not at_once or len(self.waiting) < at_once) and (call := next(left, None)) is not None:
                    self.waiting[number] = call
                    self._send(number)
                    number += 1
                if not self.waiting:
                    return
                yield from self._done()
        except ConnectionError as error:  # of a cluster that is reached as ray://
            raise Hindered(
                FAR_AWAY.format(why=(str(error).splitlines() or ["connection lost"])[0].rstrip("."))
            ) from None
        finally:
            self._cancel()

    def give_up(self, subject: Any, why: str) -> None:
        """Tell the node that the call is no longer wanted."""
        for key, waiting in self.waiting.items():
            if waiting.subject is subject:
                self.board.give_up.remote(key, why)

    def stop(self) -> None:
        """Drop what no node has begun."""
        for ref, key in list(self.refs.items()):
            if not self.waiting[key].started:
                self.ray.cancel(ref)
                del self.refs[ref], self.waiting[key]

    def _send(self, key: int) -> None:
        waiting = self.waiting[key]
        waiting.attempt, waiting.started = waiting.attempt + 1, False
        task = self.task.options(num_cpus=waiting.call.cores, num_gpus=waiting.gpus, max_retries=0)
        self.refs[task.remote(waiting.call, self.board, key, waiting.attempt, *waiting.extra)] = key

    def _done(self) -> Iterator[tuple[Any, Answer]]:
        ready, _ = self.ray.wait(list(self.refs), num_returns=len(self.refs), timeout=0)
        if not ready:
            ready, _ = self.ray.wait(list(self.refs), timeout=PAUSE)
        self._listen()
        for ref in ready:
            key = self.refs.pop(ref)
            answer = self._answer(ref, key)
            if answer is not None:
                self.done += 1
                yield self.waiting.pop(key).subject, answer
        self._tell()

    def _answer(self, ref: Any, key: int) -> Answer | None:
        """None where it is lost, and sent again."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(ref)
        except errors.RayTaskError:
            raise  # a mistake of ours
        except errors.OutOfDiskError:
            raise Hindered(
                "A disk of the Ray cluster is full. What is finished is kept: make room, and the same command resumes."
            ) from None
        except errors.OutOfMemoryError:
            why = "the memory of its node was full"
        except (errors.NodeDiedError, errors.ObjectLostError):
            why = "its node is lost"
        except errors.RayError:
            why = "its worker or its node is lost"
        waiting = self.waiting[key]
        if waiting.attempt == MOST_LOST:
            raise Hindered(
                f"A task was lost {MOST_LOST} times, the last time because {why}; a node without enough memory is a "
                "usual cause. What is finished is kept: the same command resumes."
            )
        self.lost(waiting.subject, f"{why}; it begins again on another")
        self._send(key)
        return None

    def _listen(self) -> None:
        self.taking = self.taking or self.board.take.remote()
        if not self.ray.wait([self.taking], timeout=LAST_MESSAGE)[0]:
            return  # it has not begun yet; what it takes is heard later
        taken, self.taking = self.taking, None
        try:
            messages = self.ray.get(taken)
        except self.ray.exceptions.RayError:  # the board is lost with its node, and begins anew elsewhere
            return
        for key, attempt, message in messages:
            waiting = self.waiting.get(key)
            if waiting is not None and waiting.attempt == attempt:
                waiting.started = True
                self.heard(waiting.subject, message)

    def _tell(self) -> None:
        if time.monotonic() - self.looked > NODES_EVERY:
            self.looked = time.monotonic()
            able = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
            self.nodes = len(able)
        at_work = sum(waiting.started for waiting in self.waiting.values())
        told = Tasks(self.done, at_work, len(self.waiting) - at_work, self.nodes)
        if told != self.told:
            self.told = told
            self.count(told)

    def _cancel(self) -> None:
        for ref in self.refs:
            with suppress(Exception):  # the cluster may be gone
                self.ray.cancel(ref, force=True)
        self.refs.clear()
        self.waiting.clear()
