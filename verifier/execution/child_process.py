"""Runs subjects in child processes, one for each kernel file."""

from __future__ import annotations

import itertools
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from verifier.execution.backends import backend
from verifier.execution.child_request import ChildRequest
from verifier.execution.preloaded import Child, Preloaded, preloaded
from verifier.execution.process_tree import death_message, tree, use
from verifier.execution.wire import unpack_observation
from verifier.records.case import Case, as_bytes, to_document
from verifier.records.observation import Aftermath, Observation
from verifier.records.subject import Subject
from verifier.subjects.compiling import any_compiles

CASE_SECONDS = 60.0
"""Limit of one execution: of processor time that it uses, and of time in which it wants none. Neither grows
because others keep the processors busy. A subject that comes from launch to launch on the machine is told in
its own process (`machine.pace`)."""
COMPILING = 4.0
"""As many times the limit are given to compilers besides: an autotuned kernel is compiled in every way at its
first launch."""
LENIENCE = 1.5
"""A case is stopped after so many times its limit of processor time: to be told it needs one more launch."""
WALL_FACTOR = 10
"""A case is stopped after so many times its limit by the clock, whatever it does: what it waits for may be
a process that we do not know of."""
LOOKS = 20
"""How often the processes of a case are looked at during its limit, at least."""
LONGEST_LOOK = 1.0
"""Seconds between two looks, at most."""
KEPT = 4
"""Children that stay, for files that are visited in turn; on a device one: memory there is not shared."""


class Runner:
    """Children of one backend, a fresh one for each kernel file; one that dies or hangs is replaced.

    Use as a context manager. `case_seconds` is the limit of one execution, see `CASE_SECONDS`.
    """

    def __init__(
        self, backend: str, *, options: Mapping[str, object] | None = None, case_seconds: float = CASE_SECONDS
    ) -> None:
        """Remember what to start; nothing is started yet."""
        self.backend = backend
        self.options = dict(options or {})
        self.case_seconds = case_seconds
        self._server: Preloaded | None = None
        self._children: OrderedDict[tuple[str, ...], Child] = OrderedDict()
        self._numbers = itertools.count(1)
        self._hanging: set[tuple[str, str]] = set()
        self.on_words: Callable[[str], None] | None = None
        """Told what subjects print, when they have answered or died."""
        self._heard: dict[int, int] = {}

    def __enter__(self) -> Self:
        """Return the runner itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the children."""
        self.close()

    def run(
        self,
        subject: Subject,
        case: Case,
        *,
        experiment: str = "verifier.execution.call_subject:execute",
        fresh: bool = False,
        **options: object,
    ) -> Observation:
        """Run an experiment on a subject and a case in the child of the subject's file.

        experiment: "module:function" of a function (subject, case, **options) -> Observation. fresh: whether
        the child is to be a new one, which knows nothing of earlier cases; it ends with its answer where
        there is another, whose translated kernels later cases need.
        A case that is out of time is run once more in a fresh child, unless the subject is known to hang.

        Raises:
            StartError: no child starts.

        """
        request: ChildRequest = {
            "experiment": experiment,
            "path": str(subject.path),
            "name": subject.name,
            "kind": (subject.op, subject.language, subject.dtypes),
            "case": to_document(case, keep=as_bytes),
            "options": options,
            "case_seconds": self.case_seconds,
        }
        named = (str(subject.path), subject.name)
        own = named if backend(self.backend).child_per_subject else named[:1]
        if fresh and own in self._children:
            with self._set_aside(own):
                return self._answered_in_time(named, own, request)
        return self._answered_in_time(named, own, request)

    @contextmanager
    def _set_aside(self, own: tuple[str, ...]) -> Iterator[None]:
        """Let another child answer inside, which is ended then; on a device there is room for one alone."""
        server, usual = self._server, self._children.pop(own)
        alone = backend(self.backend).child_per_subject
        if alone and server is not None:
            server.end(usual)
            usual.close()
        try:
            yield
        finally:
            if not alone:
                if own in self._children:
                    self._end(own)
                if self._server is server:
                    self._children[own] = usual
                else:  # it ended with the process that had forked it
                    usual.close()

    def _answered_in_time(
        self, named: tuple[str, str], own: tuple[str, ...], request: ChildRequest
    ) -> Observation:
        """Return the answer of a child, or of a second one where the first is out of time."""
        seen = self._answered(own, request)
        if seen.status == "timeout" and named not in self._hanging:
            seen = self._answered(own, request)
            if seen.status == "timeout":
                self._hanging.add(named)
        return seen

    def close(self) -> None:
        """Kill the children with everything they started; the preloaded process stays for other runners."""
        self.renew()
        if self._server is not None and self.options:
            self._server.close()
        self._server = None

    def renew(self) -> None:
        """Kill the children: the next cases run in fresh ones, which know nothing of earlier ones."""
        while self._children:
            self._end(next(iter(self._children)))

    def _answered(self, own: tuple[str, ...], request: ChildRequest) -> Observation:
        """Return the answer of the file's child; it is ended if it is not fit for another question."""
        child = self._child(own)
        number = next(self._numbers)
        try:
            child.connection.send_bytes(pickle.dumps((number, request), protocol=5))
            why = late(child, self.case_seconds)
            while not why:
                answered, reply = pickle.loads(child.connection.recv_bytes())  # noqa: S301 (our own child)
                if answered == number:
                    seen = unpack_observation(reply)
                    break
                why = late(child, self.case_seconds)
        except (EOFError, OSError):
            self._pass_on(child)
            return self._death(own)
        except BaseException:
            self._end(own)
            raise
        self._pass_on(child)
        if why:
            self._end(own)
            return Observation(status="timeout", message=why, aftermath=Aftermath(died=True))
        if seen.aftermath.died:  # it can still answer, but its device is lost to it
            self._end(own)
        return seen

    def _pass_on(self, child: Child) -> None:
        """Tell what a child has written since it was asked the last time."""
        if self.on_words is None:
            return
        before = self._heard.get(child.pid, 0)
        if words := child.words_since(before):
            self._heard[child.pid] = before + len(words)
            self.on_words(words.decode(errors="replace"))

    def _child(self, own: tuple[str, ...]) -> Child:
        """Return the child for a key, a fresh one if there is none; those longest unused make room."""
        if self._server is None or not self._server.usable:
            while self._children:
                self._children.popitem()[1].close()
            self._server = preloaded(self.backend, self.options)
        if own in self._children and self._server.has_ended(self._children[own]):
            self._children.pop(own).close()  # after its last answer
        if own not in self._children:
            while len(self._children) >= (1 if backend(self.backend).child_per_subject else KEPT):
                self._end(next(iter(self._children)))
            self._children[own] = self._server.fork()
            self._heard.pop(self._children[own].pid, None)
        self._children.move_to_end(own)
        return self._children[own]

    def _end(self, own: tuple[str, ...]) -> None:
        child = self._children.pop(own)
        if self._server is not None:
            self._server.end(child)
        child.close()

    def _death(self, own: tuple[str, ...]) -> Observation:
        child = self._children.pop(own)
        assert self._server is not None
        code = self._server.wait_for(child)
        detail = child.last_words()
        if code is None:
            self._server.end(child)
        child.close()
        dead = Aftermath(died=True)
        return Observation(status="crashed", message=death_message(code), detail=detail, aftermath=dead)


def late(child: Child, limit: float) -> str:
    """Wait for an answer or an end; return why to wait no longer, or nothing. limit: see `CASE_SECONDS`."""
    look = min(limit / LOOKS, LONGEST_LOOK)
    if child.connection.poll(look):
        return ""
    started = seen = time.monotonic() - look
    idle, before = 0.0, use(child.pid).seconds
    first, compiling = before, 0.0
    while not child.connection.poll(look):
        now, used = time.monotonic(), use(child.pid)
        idle += 0.0 if used.wanting else max(0.0, now - seen - max(0.0, used.seconds - before))
        if any_compiles(tree(child.pid)):
            compiling = min(compiling + used.seconds - before, COMPILING * limit)
        seen, before = now, used.seconds
        if used.seconds - first - compiling > LENIENCE * limit:
            besides = f", and {compiling:.2g} of compilers" if compiling else ""
            return f"no answer within {LENIENCE * limit:g} seconds of processor time{besides}; it was stopped"
        if idle > limit:
            return f"no answer; it was stopped after {limit:g} seconds in which it computed nothing"
        if now - started > WALL_FACTOR * limit:
            return f"no answer within {WALL_FACTOR * limit:g} seconds; it was stopped"
    return ""
