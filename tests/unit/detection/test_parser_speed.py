"""Reading stays quick: a quarter of what the benchmark must reach, so that a busy machine does not fail it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from everstep.core.kernel_lines.parser import parse_line


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "benchmarks" / "parser.py"
    spec = importlib.util.spec_from_file_location("parser_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ordinary_lines_report_nothing_and_cost_next_to_nothing(benchmark: ModuleType) -> None:
    assert [line for line in benchmark.ORDINARY if parse_line(line)] == []
    assert benchmark.rate(parse_line, benchmark.ORDINARY, 0.5) > benchmark.ORDINARY_RATE / 4


def test_lines_that_report_a_fault(benchmark: ModuleType) -> None:
    lines = benchmark.faulty()
    assert [line for line in lines if not parse_line(line)] == []
    assert benchmark.rate(parse_line, lines, 0.5) > benchmark.FAULT_RATE / 4
