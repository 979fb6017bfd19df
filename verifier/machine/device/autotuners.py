"""Triton's autotuners on the machine: they choose without measuring, and launch what a tuner would."""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from verifier.machine.culprit import passed_on
from verifier.machine.execute.findings import UnsupportedFeature
from verifier.machine.execute.tuning import MetTuner, TunedKernel, TunedState
from verifier.machine.in_force import current
from verifier.machine.model import MAX_THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from verifier.machine.execute.tuning import Tuning
    from verifier.machine.in_force import MachineSession

BENCHED = 3
"""Launches of the chosen configuration before it is chosen: a device makes some dozens, by the clock."""
_OWN = ("cache", "cache_results", "do_bench")
"""What of a tuner is replaced while it runs."""
OTHERS_BENCHED = 7
"""Other configurations that are launched before, once each; more would take more time than they show."""


class Configuration(Protocol):
    """What of a configuration of Triton's is read here."""

    def all_kwargs(self) -> dict[str, object]:
        """Return what it passes to the kernel and to the compiler."""


class Tuner(Protocol):
    """What of an autotuner of Triton's is read here, and changed while it runs."""

    fn: Any
    """What it tunes: Triton's function, or what is wrapped around it."""
    configs: list[Configuration]
    arg_names: list[str]
    nargs: dict[str, object]
    cache: dict[object, Configuration]
    cache_results: bool
    best_config: Configuration | None


@contextmanager
def choosing() -> Iterator[None]:
    """Let autotuners choose as `MachineSession.tuning` says."""
    from triton.runtime.autotuner import Autotuner

    kept = {name: vars(Autotuner)[name] for name in ("run", "prune_configs", "_bench")}
    for name, played in (("run", _run), ("prune_configs", _pruned), ("_bench", _benched)):
        setattr(Autotuner, name, played(kept[name]))
    try:
        yield
    finally:
        for name, original in kept.items():
            setattr(Autotuner, name, original)


_KERNELS: WeakKeyDictionary[Tuner, TunedKernel] = WeakKeyDictionary()


def kernel_of(tuner: Tuner) -> TunedKernel:
    """Return which kernel an autotuner tunes."""
    if tuner not in _KERNELS:
        _KERNELS[tuner] = _kernel_of(tuner)
    return _KERNELS[tuner]


def _kernel_of(tuner: Tuner) -> TunedKernel:
    function, depth = tuner.fn, 0
    while hasattr(function, "fn") and depth < 10:  # heuristics and the compiler's wrapper
        function, depth = function.fn, depth + 1
    code = function.__code__
    name = function.__qualname__.replace("<locals>.", "")
    texts = tuple(dict.fromkeys(words_of(one) for one in tuner.configs))
    return TunedKernel(code.co_filename, name, code.co_firstlineno, texts)


def words_of(configuration: Configuration) -> str:
    """Return a configuration in words: what it passes to the kernel, warps and stages."""
    hook = getattr(configuration, "pre_hook", None)
    texts = [f"{name}={value}" for name, value in configuration.all_kwargs().items()]
    texts = [text for text in texts if text != "num_ctas=1"]
    return ", ".join([*texts, *([f"pre_hook={getattr(hook, '__name__', hook)}"] if hook else [])])


def _session() -> MachineSession:
    opened = current()
    assert opened is not None, "the tuners' own methods are back where no session is in force"
    return opened


def _run(run: Callable[..., object]) -> Callable[..., object]:
    """Keep what the session chose out of the tuner's own memory, and note what ran."""

    def wrapper(self: Tuner, *args: object, **kwargs: object) -> object:
        if len(self.configs) < 2:
            return passed_on(run, self, *args, **kwargs)
        opened, kernel = _session(), kernel_of(self)
        launched = len(opened.launches)
        own = {name: vars(self)[name] for name in _OWN if name in vars(self)}
        self.cache, self.cache_results = opened.tuning.choices.setdefault(self, {}), False
        self.best_config = None
        lacking = False
        try:
            return passed_on(run, self, *args, **kwargs)
        except UnsupportedFeature:
            lacking = True
            raise
        finally:
            chosen = vars(self)["best_config"]
            for name in _OWN:
                vars(self).pop(name, None)
            vars(self).update(own)
            if chosen is not None and len(opened.launches) > launched:
                words = words_of(chosen)
                _met(opened.tuning, kernel).chosen.add(words)
                state = TunedState.LACKING if lacking else TunedState.RAN
                opened.reached.configuration(kernel, words, state)

    return wrapper


def _met(tuning: Tuning, kernel: TunedKernel) -> MetTuner:
    return tuning.met.setdefault(kernel, MetTuner())


def _pruned(prune: Callable[..., list[Configuration]]) -> Callable[..., object]:
    """Choose one configuration instead of measuring them all; give more only where they are launched."""

    def wrapper(self: Tuner, kwargs: dict[str, object]) -> list[Configuration]:
        opened, kernel = _session(), kernel_of(self)
        tuning = opened.tuning
        configurations = list(passed_on(prune, self, kwargs))
        met = _met(tuning, kernel)
        met.candidates.update(dict.fromkeys(map(words_of, configurations)))
        for words in kernel.configurations:
            open_ = words in met.candidates
            opened.reached.configuration(kernel, words, TunedState.OPEN if open_ else TunedState.PRUNED)
        if tuning.seed is not None:
            random.Random(tuning.seed).shuffle(configurations)  # noqa: S311 - a choice, not a secret
        positional = [self.nargs[name] for name in self.arg_names if name in self.nargs]

        def fits(configuration: Configuration) -> bool:
            fitting = _fits(self.fn, positional, {**kwargs, **configuration.all_kwargs()})
            if not fitting:
                met.unfit.add(words_of(configuration))
                opened.reached.configuration(kernel, words_of(configuration), TunedState.UNFIT)
            return fitting

        wanted = tuning.forced[1] if tuning.forced is not None and tuning.forced[0] == kernel else None
        first = [one for one in configurations if words_of(one) == wanted]
        rest = [one for one in configurations if words_of(one) != wanted]
        chosen = next((one for one in (*first, *rest) if fits(one)), configurations[0])
        if tuning.benched != kernel or len(configurations) < 2:
            return [chosen]
        others = [one for one in configurations if one is not chosen][:OTHERS_BENCHED]
        lacking = {w for k, w, s in opened.reached.configurations if (k, s) == (kernel, TunedState.LACKING)}
        launched = {words_of(one): 1 for one in others if words_of(one) not in lacking and fits(one)}
        tuning.launches[self] = {**launched, words_of(chosen): BENCHED}
        return configurations

    return wrapper


def _benched(bench: Callable[..., object]) -> Callable[..., object]:
    """Launch a configuration as often as its tuner is played to, with the tuner's own hooks around."""

    def wrapper(self: Tuner, *args: object, config: Configuration, **meta: object) -> object:
        tuning, words = _session().tuning, words_of(config)
        launches = tuning.launches.get(self, {}).get(words, 0)
        if not launches:  # it does not fit, or there are too many
            return [math.inf] * 3
        _met(tuning, kernel_of(self)).benched = True

        def do_bench(
            call: Callable[[], object], quantiles: Sequence[float] = (0.5,), **_options: object
        ) -> list[float]:
            for _ in range(launches):
                call()
            return [float(launches != BENCHED)] * len(quantiles)

        vars(self)["do_bench"] = do_bench
        return passed_on(bench, self, *args, config=config, **meta)

    return wrapper


def _fits(function: Any, positional: list[object], keywords: dict[str, object]) -> bool:
    """Whether a configuration compiles, and its threads and its shared memory fit the device."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    try:
        kernel = passed_on(function.run, *positional, **{**keywords, "warmup": True})
    except (OutOfResources, CompileTimeAssertionFailure, PTXASError):
        return False
    metadata = getattr(kernel, "metadata", None)
    if metadata is None:
        return True
    threads = 32 * getattr(metadata, "num_warps", 1)
    return bool(metadata.shared <= _session().machine.max_shared() and threads <= MAX_THREADS)
