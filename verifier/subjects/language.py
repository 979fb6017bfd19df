"""The language of a kernel whose declaration leaves it out: that of the kernels that its code names."""

from __future__ import annotations

from verifier.records.subject import Language, Subject
from verifier.subjects.declare import fused_as_usual
from verifier.subjects.used_functions import Used, used_by

LEFT_OUT = "language"


def may_launch(used: Used) -> Language | None:
    """Return the language of the kernels that a function may launch; None: it cannot be told."""
    if any(one.kernel and one.launched for one in used.functions):
        return "triton"
    if used.cuda_sources:
        return "cuda"
    return None if used.unfollowed else "torch"


def with_language(subject: Subject) -> Subject:
    """Return the subject with its language, of which its declaration may say nothing.

    Its file has to be executed whole: a function may name kernels that stand below it.

    Raises:
        ValueError: the code of the function names objects in a way that cannot be followed.

    """
    if LEFT_OUT not in subject.claim.assumed:
        return subject
    used = used_by(subject.function)
    language = may_launch(used)
    if language is None:
        raise ValueError(
            f"{subject.name}: its language is not declared and cannot be told ({used.unfollowed[0]}): say "
            'language="triton", "cuda", "binary" or "torch"'
        )
    claim = fused_as_usual(subject.claim, language)
    return subject.differing(language=language, mean_contraction=claim.mean_contraction)
