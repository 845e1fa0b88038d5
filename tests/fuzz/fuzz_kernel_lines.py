"""Coverage-guided fuzzing of the reading of kernel lines. It needs atheris, which is no dependency of the project:

    uv venv /tmp/fuzz --python 3.11 && uv pip install --python /tmp/fuzz atheris -e .
    /tmp/fuzz/bin/python tests/fuzz/fuzz_kernel_lines.py -max_total_time=600 /tmp/corpus

Seeds are the lines of the field and one line of every row of the catalogue. What must hold for any bytes: nothing
raises, what is read is bounded and well-formed, the prefilter passes over nothing that a pattern would match, text and
bytes are read alike, and a casebook takes anything in.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from everstep.adapters.gpu.catalog_files import shipped_catalog
    from everstep.core.correlation.casebook import Casebook, settled, with_sighting
    from everstep.core.correlation.sighting import placed_sighting
    from everstep.core.correlation.verdicts import accusing, faults
    from everstep.core.fault_catalog import KINDS
    from everstep.core.faults import classify
    from everstep.core.health import LINE_LIMIT, Evidence, Gpu
    from everstep.core.kernel_lines.folding import NOTHING, follow, read_message
    from everstep.core.kernel_lines.parser import parse_line
    from everstep.core.kernel_lines.prefilter import may_be_fault
    from everstep.core.kernel_lines.text import read_text
    from everstep.core.kmsg_record import parse_record

DATA = Path(__file__).resolve().parents[1] / "unit" / "data"
CATALOG = shipped_catalog()
GPUS = tuple(Gpu(index, f"GPU-{index}", f"s{index}", f"0000:{index:02x}:00") for index in range(8))


def check(evidence: Evidence) -> None:
    assert evidence.kind in KINDS
    assert evidence.code
    assert evidence.kind not in ("xid", "sxid") or evidence.code.isdigit()
    assert len(evidence.line.encode()) <= LINE_LIMIT
    assert evidence.line.isprintable()
    assert evidence.count >= 1
    assert evidence.pid is None or evidence.pid >= 0
    assert classify(CATALOG, evidence).reason


def fuzz(data: bytes) -> None:
    if (evidence := parse_line(data, allow_injected=True, companions=True)) is not None:
        check(evidence)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        pass
    else:
        assert parse_line(text, allow_injected=True, companions=True) == evidence
    if b"\n" not in data and b"\r" not in data:
        record = parse_record(data)
        found = read_text(data) if record is None else read_text(record.text, record=True)
        assert found is None or may_be_fault(data), found
    book, state = Casebook(), NOTHING
    for number, line in enumerate(data.splitlines()[:20]):
        state, evidence = follow(state, line, allow_injected=True, companions=True)
        if evidence is not None:
            check(evidence)
            now = float(number)
            seen = placed_sighting(evidence, now, "boot", GPUS)
            book = settled(with_sighting(book, seen, accusing(book, CATALOG, now)), now)
    faults(book, CATALOG, 1000.0)
    read_message(data)


def seed(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.loads(line)["line"] for name in ("kernel_lines", "peer_lines") for line in (DATA / f"{name}.jsonl").open()
    ]
    lines += [entry.example for entry in CATALOG.entries.values() if entry.example]
    for number, line in enumerate(lines):
        (folder / f"seed-{number}").write_bytes(line.encode())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if not argument.startswith("-"):
            seed(Path(argument))
            break
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
