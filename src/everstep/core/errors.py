"""One error tree for the whole platform, drawn at the top because callers decide by its three branches.

EverstepError
├── RetryLater          nothing was changed, or it is safe to repeat; ask again after a while
│   ├── Unreachable     could not ask: never to be read as "nothing there"
│   └── Conflict        somebody else wrote first; observe again
├── FixTheRequest       repeating will not help; the caller must change something
│   ├── InvalidInput    malformed or out of range
│   ├── NotFound        the named thing does not exist (the server said so)
│   └── Refused         understood, and denied: rights, admission, an unsupported operation
└── CallAHuman          the platform must not go on by itself
    ├── Ambiguous       an effect may or may not have happened, and nobody can tell
    └── Unreadable      stored state cannot be understood; it is never reset
"""


class EverstepError(Exception):
    """Base of every error that Everstep raises on purpose; its text is one sentence for a person."""


class RetryLater(EverstepError):
    """Safe to repeat after a delay."""


class Unreachable(RetryLater):
    """The other side could not be asked; what it would have said is unknown."""


class Conflict(RetryLater):
    """The object changed between reading and writing; read again."""


class FixTheRequest(EverstepError):
    """The same request will fail again."""


class InvalidInput(FixTheRequest):
    """The input is malformed or out of range; the text says how to mend it."""


class NotFound(FixTheRequest):
    """The named thing does not exist, and the server that knows said so."""


class Refused(FixTheRequest):
    """The request was understood and denied."""


class CallAHuman(EverstepError):
    """The platform must stop and ask."""


class Ambiguous(CallAHuman):
    """An effect may or may not have happened, and nobody can tell."""


class Unreadable(CallAHuman):
    """Stored state cannot be understood; it is kept as it is."""
