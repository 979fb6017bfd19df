"""A runner without a child process, for subjects that are known not to hurt: it starts at once."""

from __future__ import annotations

import importlib

from verifier.execution import reach_recording
from verifier.execution.backends import backend
from verifier.execution.call_subject import answer
from verifier.execution.wire import pack_observation, unpack_observation
from verifier.records.case import as_bytes, from_document, to_document


class InProcess:
    """Takes the place of `verifier.execution.Runner`; counts its executions."""

    def __init__(self, backend, **options):
        self.options = options.get("options") or {}
        self.backend, self.runs = backend, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(
        self,
        subject,
        case,
        *,
        experiment="verifier.execution.call_subject:execute",
        fresh=False,
        **options,
    ):
        """Run an experiment; `fresh` asks in vain: this process is the only one."""
        self.runs += 1
        module, name = experiment.split(":")
        function = getattr(importlib.import_module(module), name)
        sent = from_document(to_document(case, keep=as_bytes))
        seen = answer(function, subject, sent, backend=backend(self.backend), **options)
        return unpack_observation(pack_observation(seen))

    def renew(self):
        """Forget what earlier cases reached, as a fresh child has."""
        reach_recording._RECORDINGS.clear()

    def close(self):
        """End nothing."""
