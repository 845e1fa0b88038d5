"""Slurm's hostlist notation, against its own examples and as a property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.errors import InvalidInput
from everstep.core.hostlists import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-[1-3,07],login", ("gpu-1", "gpu-2", "gpu-3", "gpu-07", "login")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("rack[1-2]n[1-2]", ("rack1n1", "rack1n2", "rack2n1", "rack2n2")),
        ("one", ("one",)),
        ("(null)", ()),
        ("", ()),
        ("None assigned", ()),
    ],
)
def test_expands(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[3-1]", "n[a-b]", "n[[1]]", "n[1-100000]", "a[1-300]b[1-300]"])
def test_refuses(text: str) -> None:
    with pytest.raises(InvalidInput):
        expand(text)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)), min_size=1, max_size=6))
def test_ranges_count(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{low}-{low + more}" for low, more in ranges)
    wanted = [f"n{i}" for low, more in ranges for i in range(low, low + more + 1)]
    assert list(expand(f"n[{text}]")) == wanted
