"""What an agent must know again after a restart: open cases with the lines that they were read from, and the past."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everstep.api.meta import Moment
from everstep.api.schema import doc
from everstep.core.health import Part


class Evidence(msgspec.Struct, rename="camel", omit_defaults=True):
    """One observation, before any judgement."""

    kind: Annotated[str, doc("Where the code comes from: xid, sxid, amd, ib, pcie or host.")]
    code: Annotated[str, doc("Number or name within that kind, for example 79.")]
    pci: Annotated[str | None, doc("PCI address as the driver printed it.")] = None
    pid: Annotated[int | None, doc("Process that the line names, in the host's numbering.")] = None
    process: Annotated[str | None, doc("Name of that process.")] = None
    line: Annotated[str, doc("The text it was read from, cut at 512 characters.")] = ""
    injected: Annotated[bool, doc("True when a program wrote the line on purpose, for a test.")] = False
    subject: Annotated[str | None, doc("What else it names: an interface, a disk, a file server.")] = None
    part: Annotated[Part, doc("Whether the line is the event, tells more of it, or goes with another line.")] = (
        Part.WHOLE
    )
    count: Annotated[int, doc("How many messages said the same at that moment.")] = 1


class Job(msgspec.Struct, rename="camel", omit_defaults=True):
    """A job that used a device."""

    id: Annotated[str, doc("Number of the job; empty where it is not known.")]
    lineage: Annotated[str, doc("What makes two jobs related; jobs of one lineage never accuse a GPU together.")]


class Case(msgspec.Struct, rename="camel", omit_defaults=True):
    """One thing that is wrong, however many lines and devices tell of it; a fault is what the catalogue makes of it."""

    key: Annotated[str, doc("Identity, <kind>:<code>@<device>; the key of the fault.")]
    cause: Annotated[Evidence, doc("The evidence closest to the cause.")]
    device: Annotated[str, doc("Where the cause was seen: serial of the GPU, PCI address, name, or node.")]
    first_seen: Annotated[Moment | None, doc("When it was first seen, by the agent's clock.")]
    last_seen: Annotated[Moment | None, doc("When it was last seen.")]
    boot_id: Annotated[str, doc("Boot of the node in which it was seen.")] = msgspec.field(name="bootID")
    count: Annotated[int, doc("How many messages told of it.")] = 1
    gpu_index: Annotated[int | None, doc("Index of the GPU on its node.")] = None
    gpu_serial: Annotated[str | None, doc("Serial number of the GPU.")] = None
    members: Annotated[list[Evidence], doc("What else was told of it, one for each code.")] = []
    devices: Annotated[list[str], doc("All devices that reported it.")] = []
    jobs: Annotated[list[Job], doc("Jobs that used the device then, where known.")] = []
    pending_until: Annotated[Moment | None, doc("Until when another line may yet explain it; no fault before.")] = None
    source: Annotated[str, doc("State source that shows it; empty for a line of the log.")] = ""


class Occurrence(msgspec.Struct, rename="camel", omit_defaults=True):
    """One episode of one code on one device."""

    device: Annotated[str, doc("Serial of the GPU where it is known, else PCI address or name.")]
    code: Annotated[str, doc("<kind>:<code>.")]
    at: Annotated[Moment, doc("When it began.")]
    boot_id: Annotated[str, doc("Boot of the node in which it was seen.")] = msgspec.field(name="bootID", default="")
    lineages: Annotated[list[str], doc("Lineages of the jobs that used the device then, where known.")] = []
