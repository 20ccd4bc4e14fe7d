"""Shortens the reason of a slice's state to the cause and the next step, for `explain` and `status`. Pure."""

import re

from provisioner.model import bounds
from provisioner.slices.messages.waits import NO_POOL
from provisioner.slices.view.types import SliceView, State

#: Maximum number of characters of a reason that is not shortened; longer headlines exceed three lines of 80 characters.
_MAX_REASON = 140
#: Pattern of the next step at the end of a reason, by state. Reasons of WAITING and of missing states have none.
_STEPS = {
    State.REJECTED: f"{NO_POOL}.*; (.+)",
    State.SPLIT: r".*; (.+)",
    State.NONE: r".*; (if .+)",
    State.WAITING: "(?!)",
}
#: Pattern of the reason after failed creates: the choice of capacity, if it is named, and the end of GKE's message; and
#: pattern of the reason of a rejection: GKE's message, or the limit that the slice exceeds.
_FAILURE = re.compile(
    r"Node pool \S+ waits (?:for (?P<choice>[^(]+)|because .+ have failed) \((?!missing)[^)]*\): "
    r"(?:.*creation failed: )?(?P<said>.+)"
    r"|(?:.* rejects node pool \S+ \([^)]*\): |.*(?=Limit of .* will not help))"
    r"(?P<rejection>.+?)(?:, so waiting will not help.)?$",
    re.DOTALL,
)
#: Maximum number of characters of a cause, with as much of GKE's message as fits, and of the message of a rejection.
_MAX_CAUSE = 85
_MAX_REJECTION = 100


def brief(slice_: SliceView) -> tuple[str, str]:
    """Return the cause and the next step of a slice's state in a few words, and the rest of the reason.

    The rest is empty if the reason is short. Before the next step, a reason may contain texts of GKE of any length.
    """
    reason = slice_.reason
    if slice_.state not in _STEPS or (not slice_.next_step and len(reason) <= _MAX_REASON):
        return f"{reason.removeprefix(NO_POOL)} {slice_.next_step}".rstrip(), ""
    found = re.match(_STEPS[slice_.state], reason, re.DOTALL)
    step = slice_.next_step or (found[1] if found is not None else "")
    first = re.split("[:;.] ", reason.removeprefix(NO_POOL), maxsplit=1)[0].removesuffix(".")
    has_cause = slice_.next_step or slice_.state is State.WAITING
    cause = "" if slice_.state is State.SPLIT else slice_.cause if has_cause else first
    if (failure := _FAILURE.match(reason)) is not None:
        choice, said, rejection = (part.rstrip(" .") if part else "" for part in failure.groups())
        of_choice = f"{cause} of {choice}" if choice else cause
        causes = (f"{of_choice}: {said}", f"{cause}: {said}", of_choice)
        cause = next((text for text in causes if len(text) <= _MAX_CAUSE), cause)
        cause = bounds.cut(rejection, _MAX_REJECTION) or cause
    short = ". ".join(filter(None, (cause, f"{step[:1].upper()}{step[1:]}")))
    return f"{short.rstrip('.')}.", reason.removesuffix(step).rstrip(" ;")
