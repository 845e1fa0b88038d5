"""Which sources this machine has. The agent and ``everstep check`` ask the same ones."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from everstep.adapters.gpu.kmsg import KernelLogFile
from everstep.adapters.node import amd_gpus, disks, fabric_manager, mounts, pci_links, rdma_ports
from everstep.adapters.node.deadlines import PolledSource
from everstep.adapters.node.journal import Journal
from everstep.core.errors import InvalidInput
from everstep.core.health import Fault
from everstep.ports import LineSource, StateSource

KERNEL_LOG = Path("/dev/kmsg")
DCGM = "DCGM exporter"  # the name of its source; the adapter has the same


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the site says of its nodes; everything else is found out.

    Attributes:
        kernel_log: a device or file, or "journal", or "" for the device where it can be read, else the journal.
        journal_folder: where the journal's files are; None for where journalctl looks by itself.
        host_root: where the host's ``/sys`` and ``/proc`` are found.
        dcgm_url: metrics of DCGM's exporter; "" for none.
        expected_ports: ports such as ``mlx5_0/1`` that must be up.
        expected_mounts: paths where something must be mounted.
        without: names of sources that are not to be asked.
    """

    kernel_log: str = ""
    journal_folder: Path | None = None
    host_root: Path = Path("/")
    dcgm_url: str = ""
    expected_ports: tuple[str, ...] = ()
    expected_mounts: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of :class:`SourceOptions`; the defaults come from the environment, so that ``everstep check`` has them."""
    default = from_environment(os.environ)
    parser.add_argument("--journal-folder", type=Path, default=default.journal_folder, help="files of the journal")
    parser.add_argument("--host-root", type=Path, default=default.host_root, help="default: %(default)s")
    parser.add_argument("--dcgm-url", default=default.dcgm_url, help="metrics of DCGM's exporter; default: none")
    for flag, value, text in (
        ("--expect-port", default.expected_ports, "port such as mlx5_0/1 that must be up; may be repeated"),
        ("--expect-mount", default.expected_mounts, "path where something must be mounted; may be repeated"),
        ("--without-source", default.without, "name of a source that is not asked; may be repeated"),
    ):
        parser.add_argument(flag, action="append", default=list(value), help=text)


def source_options(arguments: argparse.Namespace, kernel_log: str = "") -> SourceOptions:
    """The options that flags of :func:`add_source_flags` gave."""
    return SourceOptions(
        kernel_log=kernel_log,
        journal_folder=arguments.journal_folder,
        host_root=arguments.host_root,
        dcgm_url=arguments.dcgm_url,
        expected_ports=tuple(arguments.expect_port),
        expected_mounts=tuple(arguments.expect_mount),
        without=tuple(arguments.without_source),
    )


def from_environment(environment: Mapping[str, str]) -> SourceOptions:
    """The options as the agent's pod has them; lists are separated by commas."""
    folder = environment.get("EVERSTEP_JOURNAL_FOLDER")
    return SourceOptions(
        kernel_log=environment.get("EVERSTEP_KMSG", ""),
        journal_folder=Path(folder) if folder else None,
        host_root=Path(environment.get("EVERSTEP_HOST_ROOT") or "/"),
        dcgm_url=environment.get("EVERSTEP_DCGM_URL", ""),
        expected_ports=_listed(environment.get("EVERSTEP_EXPECT_PORTS", "")),
        expected_mounts=_listed(environment.get("EVERSTEP_EXPECT_MOUNTS", "")),
        without=_listed(environment.get("EVERSTEP_WITHOUT_SOURCES", "")),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def line_source(options: SourceOptions, boot_id: str) -> LineSource:
    """Where the kernel log is read. InvalidInput when there is no way to.

    Args:
        boot_id: of this boot; the journal holds others too.
    """
    if options.kernel_log not in ("", "journal"):
        return KernelLogFile(Path(options.kernel_log))
    if not options.kernel_log and os.access(KERNEL_LOG, os.R_OK):
        return KernelLogFile(KERNEL_LOG)
    if shutil.which("journalctl"):
        return Journal(boot_id, options.journal_folder)
    if options.kernel_log:
        raise InvalidInput("the kernel log is to be read from the journal, but there is no journalctl: install systemd")
    return KernelLogFile(KERNEL_LOG)  # which then says why it cannot be read


def state_sources(
    options: SourceOptions, known: Iterable[Fault] = (), *, at_once: bool = False
) -> Sequence[StateSource]:
    """Every source of this machine's state that exists here.

    Args:
        known: faults on record in this boot. Some sources only know what changed while they looked; what is on record
            tells them what they saw before the agent was started again.
        at_once: what counts only once it has lasted for a while counts at the first look: a check looks once.

    Raises:
        InvalidInput: a source that is to be left out has a name that none has.
    """
    root, faults = options.host_root, tuple(known)
    sources: list[StateSource] = [
        PolledSource("disks", disks.PERIOD, disks.Disks(root, at_once=at_once).look),
        PolledSource(
            "mounts",
            mounts.PERIOD,
            mounts.Mounts(
                root, options.expected_mounts, _subjects(faults, "host", "mount_readonly"), at_once=at_once
            ).look,
        ),
        PolledSource("PCI Express", pci_links.PERIOD, pci_links.PciLinks(root).look),
        PolledSource(
            "network ports",
            rdma_ports.PERIOD,
            rdma_ports.RdmaPorts(
                root, options.expected_ports, _subjects(faults, "ib", "port_drop"), at_once=at_once
            ).look,
        ),
    ]
    gpus = amd_gpus.AmdGpus(root, [fault.pci for fault in faults if fault.code == "ras_count_rose" and fault.pci])
    if gpus.cards():
        sources.append(PolledSource("AMD GPUs", amd_gpus.PERIOD, gpus.look))
    if fabric_manager.has_switches(root):
        sources.append(
            PolledSource(
                "fabric manager", fabric_manager.PERIOD, fabric_manager.FabricManager(root, at_once=at_once).look
            )
        )
    if options.dcgm_url:
        from everstep.adapters.node.dcgm import DcgmExporter, own_gpus  # noqa: PLC0415 - its HTTP client costs a check 80 ms

        sources.append(DcgmExporter(options.dcgm_url, faults, partial(own_gpus, root)))
    names = [source.name for source in sources]
    optional = ("AMD GPUs", "fabric manager", DCGM)
    if unknown := [name for name in options.without if name not in (*names, *optional)]:
        raise InvalidInput(f"{unknown[0]!r} is no source; there are {', '.join(dict.fromkeys((*names, *optional)))}")
    return [source for source in sources if source.name not in options.without]


def _subjects(faults: Iterable[Fault], kind: str, code: str) -> list[str]:
    """What the faults of this code are about: a fault's key ends with it."""
    return [fault.key.partition("@")[2] for fault in faults if (fault.kind, fault.code) == (kind, code)]
