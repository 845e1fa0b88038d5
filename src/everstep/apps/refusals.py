"""What the API server refused, as one line for a person at a command line: what is wrong, and how to mend it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from everstep.adapters.kube.verbs import ApiRefusal
from everstep.adapters.kube.wire import StatusCause
from everstep.core.errors import EverstepError

NOT_INSTALLED = "this Kubernetes does not know {}: install Everstep on it first (charts/everstep)"
# How the API server answers a path of a kind that nobody has defined; a missing object of a known kind reads otherwise.
_NO_KIND = ("page not found", "could not find the requested resource")
_NO_RIGHT = re.compile(r"User \"(?P<user>[^\"]*)\" cannot (?P<right>\w+ resource .*)", re.S)


@contextmanager
def in_plain_words(what: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turns refusals of the API server within the block into errors of the same kind with one plain line.

    Args:
        what: the object, as the person calls it: ``SlurmCluster slurm/crew``.
        options: regular expression for a field's path -> the command's option that sets it.
    """
    try:
        yield
    except EverstepError as why:
        if isinstance(why.__cause__, ApiRefusal):
            raise type(why)(_line(what, why.__cause__, options or {})) from why
        raise


def kind_is_missing(error: EverstepError) -> bool:
    """Whether a NotFound says that the kind itself is not there: its definition was not installed."""
    said = error.__cause__
    return isinstance(said, ApiRefusal) and said.code == 404 and any(words in str(said) for words in _NO_KIND)


def _line(what: str, refused: ApiRefusal, options: Mapping[str, str]) -> str:
    status, said = refused.status, " ".join(refused.status.message.split())
    causes = status.details.causes
    match refused.code:
        case 400 | 422 if causes:
            return f"{what} cannot be as asked: " + "; ".join(_cause(cause, options) for cause in causes)
        case 400 | 422:
            return f"{what} cannot be as asked: {said}"
        case 401:
            return f"{what}: Kubernetes does not accept these credentials; log in anew, or name another --kubeconfig"
        case 403 if any(cause.reason == "NamespaceTerminating" for cause in causes):
            return f"{what}: its namespace is being deleted; wait until it is gone, or choose another --namespace"
        case 403 if right := _NO_RIGHT.search(said):
            return (
                f"{what}: {right['user'] or 'this user'} may not {right['right'].strip()}; "
                "have that right granted, or name another --kubeconfig"
            )
        case 403:
            return f"{what} is not allowed: {said}"
        case 404 if any(words in said for words in _NO_KIND):
            return NOT_INSTALLED.format(f"{what.partition(' ')[0]}s")
        case 409:
            return f"{what} was changed by somebody else at the same moment ({said}); run the command again"
        case 429:
            return f"{what}: Kubernetes is too busy to answer; run the command again in a while"
        case _:
            return f"{what}: Kubernetes answered {refused.code}: {said}"


def _cause(cause: StatusCause, options: Mapping[str, str]) -> str:
    """``--gpus (spec.nodePools[0].gpus.count): 99 should be less than or equal to 16``."""
    message = " ".join(cause.message.split()).replace(f"{cause.field} in body ", "")
    wrong = re.fullmatch(r"Invalid value: (?P<value>\"[^\"]*\"|[\w.-]+): (?P<rest>.*)", message)
    if wrong and not wrong["rest"].startswith(('"', "Invalid")):
        message = wrong["rest"] if wrong["value"] in wrong["rest"] else f"{wrong['value']} {wrong['rest']}"
    option = next((name for path, name in options.items() if re.match(path, cause.field)), "")
    where = f"{option} ({cause.field})" if option and cause.field else cause.field or option
    return f"{where}: {message}" if where else message
