"""slurmd is started again when its first fetch of the configuration fails; a program that behaves like it stands in.

Both run as processes of their own, for it is signals that are passed on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Fails as often as it is told to: it sleeps then, as slurmd does, and dies of a SIGTERM. Configured, it notes
# a SIGHUP, and ends with 3 at a SIGTERM. In sh, for that starts in a millisecond.
PROGRAM = """
cd "$0"
number=$(ls | grep -c start-)
printf %s $$ >pid
if [ "$number" -lt "$1" ]; then
    mv pid "start-$number"
    exec sleep 600
fi
trap 'touch hup' HUP
trap 'exit 3' TERM
touch slurm.conf
mv pid "start-$number"
while :; do sleep 0.05; done
"""
SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from everstep.apps.slurm_pod import slurmd
slurmd._PATIENCE = (1.0, 1.0)
folder, failures, controller, program = Path(sys.argv[1]), *sys.argv[2:]
async def listens():
    (folder / "asked").touch()
    if controller == "away":
        await asyncio.Event().wait()
argv = ["sh", "-c", program, str(folder), failures]
sys.exit(asyncio.run(slurmd.Slurmd(argv, listens, folder / "slurm.conf").run()))
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(failures: int, controller: str = "there") -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", SUPERVISOR, str(tmp_path), str(failures), controller, PROGRAM]
        started.append(subprocess.Popen(argv))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()
    for note in tmp_path.glob("start-*"):
        subprocess.run(["kill", "-9", note.read_text()], check=False, capture_output=True)


def appears(path: Path) -> Path:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.01)
    return path


def starts(folder: Path) -> int:
    return len(list(folder.glob("start-*")))


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_it_is_started_until_it_has_its_configuration(tmp_path: Path, start: Start, failures: int) -> None:
    running = start(failures)
    appears(tmp_path / f"start-{failures}")
    running.send_signal(signal.SIGHUP)
    appears(tmp_path / "hup")
    running.terminate()
    assert running.wait(30) == 3
    assert starts(tmp_path) == failures + 1


def test_the_cache_of_an_earlier_slurmd_is_not_taken_for_its_own(tmp_path: Path, start: Start) -> None:
    (tmp_path / "slurm.conf").touch()
    running = start(1)
    appears(tmp_path / "start-1")
    running.terminate()
    assert running.wait(30) == 3


def test_a_slurmd_that_never_gets_it_is_left_to_its_own_retries(tmp_path: Path, start: Start) -> None:
    running = start(99)
    last = appears(tmp_path / "start-2")
    running.terminate()
    assert running.wait(30) == 128 + signal.SIGTERM
    assert starts(tmp_path) == 3
    assert not Path(f"/proc/{last.read_text()}").exists()


def test_one_that_dies_by_itself_is_not_started_again(tmp_path: Path, start: Start) -> None:
    running = start(99)
    subprocess.run(["kill", "-9", appears(tmp_path / "start-0").read_text()], check=True)
    assert running.wait(30) == 128 + signal.SIGKILL
    assert starts(tmp_path) == 1


def test_it_is_not_started_again_before_the_controller_is_back_and_a_stop_ends_the_wait(
    tmp_path: Path, start: Start
) -> None:
    running = start(99, "away")
    appears(tmp_path / "asked")
    running.terminate()
    assert running.wait(30) == 128 + signal.SIGTERM
    assert starts(tmp_path) == 1
