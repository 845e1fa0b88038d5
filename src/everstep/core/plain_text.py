"""Text of unknown origin in a form that is harmless wherever it is shown or stored.

The kernel prints names that users choose, an exporter or a file server is somebody else's program. What they write ends
in NodeHealth, in conditions and Events, on terminals and in pages: it may neither move a cursor nor fill an object.
"""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_WHITE = frozenset("\t\n\r\v\f\u00a0\u2028\u2029")


def plain(text: str, limit: int) -> str:
    """``text`` in one line of printable characters, cut at ``limit`` bytes of UTF-8.

    White space becomes a blank, every other character that is not printable (control characters, what turns the
    direction of writing around, halves of surrogate pairs) becomes U+FFFD.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else " " if char in _WHITE else REPLACEMENT for char in text[: limit + 1]
        )
    if len(text) * 4 <= limit or (text.isascii() and len(text) <= limit):
        return text
    return text.encode()[:limit].decode(errors="ignore")
