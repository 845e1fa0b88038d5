"""The reference page of the custom resources says what the structs say now."""

from pathlib import Path

from everstep.api.reference import render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "resources.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run: python -m everstep.api.reference > docs/reference/resources.md"
