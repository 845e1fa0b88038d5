"""What ends a case: proof, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everstep.core.correlation.casebook import Casebook
from everstep.core.correlation.proof import QUIET, Answer, with_proof
from everstep.core.correlation.verdicts import accusing
from everstep.core.health import Gpu
from tests.unit.detection.sightings import CATALOG, GPUS, TRAIN, after, sees, told, xid


def prove(book: Casebook, gpus: Iterable[Gpu], boot: str, now: float, *, passed: bool = True) -> Casebook:
    answer = Answer(tuple(gpus), boot, asked_at=now, passed=passed)
    return with_proof(book, answer, now, accusing(book, CATALOG, now))


def test_only_another_boot_and_a_check_that_passes_end_a_hardware_fault() -> None:
    book = after(xid(79, 100.0))
    lost = (replace(GPUS[0], lost=True), *GPUS[1:])
    assert prove(book, GPUS, "boot-1", 200.0).cases == book.cases
    assert prove(book, lost, "boot-2", 200.0).cases == book.cases
    assert prove(book, GPUS, "boot-2", 200.0, passed=False).cases == book.cases
    assert prove(book, (), "boot-2", 200.0).cases == book.cases
    assert prove(book, GPUS, "boot-2", 200.0).cases == ()
    assert prove(book, (replace(GPUS[0], serial="s9"), *GPUS[1:]), "boot-2", 200.0).cases == ()
    assert prove(book, GPUS, "boot-2", 200.0).history == book.history


def test_the_driver_takes_its_wish_back() -> None:
    wish = xid(154, 101.0, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    book = after(xid(119, 100.0), wish)
    assert told(book, 200.0)[0].code == "119"
    asking = (replace(GPUS[0], recovery_action="reset"), *GPUS[1:])
    assert prove(book, asking, "boot-1", 200.0).cases == book.cases
    assert prove(book, GPUS, "boot-1", 200.0).cases == ()
    said = after(
        xid(154, 150.0, rest="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), book=book
    )
    assert said.cases == ()
    elsewhere = after(xid(154, 150.0, gpu=1, rest="GPU recovery action changed from 0x1 (x) to 0x0 (None)"), book=book)
    assert elsewhere.cases == book.cases


def test_the_driver_never_asked_so_its_silence_proves_nothing() -> None:
    assert prove(after(xid(119, 100.0)), GPUS, "boot-1", 200.0).cases != ()


def test_a_link_that_comes_back_ends_its_own_case() -> None:
    down = sees("mlx5_core 0000:0c:00.0 rdma0: Link down", 100.0)
    up = sees("mlx5_core 0000:0c:00.0 rdma0: Link up", 160.0)
    other = sees("mlx5_core 0000:1c:00.0 rdma1: Link up", 160.0)
    assert after(down, other).cases != ()
    assert after(down, up).cases == ()


def test_two_links_that_went_down_together_come_back_one_by_one() -> None:
    down = [sees(f"mlx5_core 0000:{n}c:00.0 rdma{n}: Link down", 100.0) for n in (0, 1)]
    up = [sees(f"mlx5_core 0000:{n}c:00.0 rdma{n}: Link up", 160.0 + n) for n in (0, 1)]
    assert len(told(after(*down), 101.0)) == 1
    assert len(told(after(*down, up[0]), 161.0)) == 1
    assert told(after(*down, *up), 162.0) == []


def test_a_file_server_that_answers_again() -> None:
    lost, back = (sees(f"nfs: server 10.0.0.9 {what}", 100.0) for what in ("not responding, still trying", "OK"))
    assert len(after(lost).cases) == 1
    assert after(lost, back).cases == ()


def test_what_accuses_nobody_is_forgotten_after_a_quiet_day() -> None:
    book = after(xid(31, 100.0, TRAIN), xid(79, 100.0, gpu=1))
    (left,) = prove(book, GPUS, "boot-1", 101.0 + QUIET).cases
    assert left.code == "xid:79"


def test_the_same_fault_in_the_next_boot_takes_the_waiting_ones_place() -> None:
    book = after(xid(79, 100.0), xid(79, 900.0, boot="boot-2"))
    (fault,) = told(book, 901.0)
    assert (fault.boot_id, fault.count, fault.action) == ("boot-2", 1, "replaceNode")
    assert prove(book, GPUS, "boot-2", 1000.0).cases == book.cases
