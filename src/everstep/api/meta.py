"""What every kind of the group shares: the group's name, conditions, and a fault as both kinds show it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from everstep.api.schema import doc
from everstep.core.health import FaultClass, FirstAction, Severity

GROUP = "everstep.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

Moment = Annotated[datetime, msgspec.Meta(tz=True)]  # RFC 3339 with microseconds, UTC


class Condition(msgspec.Struct, rename="camel", omit_defaults=True):
    """One aspect of the state, in the form that kubectl wait and other controllers know."""

    type: Annotated[str, doc("Name of the aspect, in CamelCase.")]
    status: Annotated[str, doc("True, False or Unknown.", enum=["True", "False", "Unknown"])]
    reason: Annotated[str, doc("One word, for programs.")]
    message: Annotated[str, doc("One sentence, for people.")] = ""
    last_transition_time: Annotated[Moment | None, doc("When status last changed.")] = None


class Fault(msgspec.Struct, rename="camel", omit_defaults=True):
    """A judged piece of evidence that something is wrong on a node."""

    key: Annotated[str, doc("Identity for de-duplication: <kind>:<code>@<GPU serial, PCI address or node>.")]
    kind: Annotated[
        str,
        doc(
            "Where the code comes from: xid, sxid, amd, ib, pcie, host, or condition and slurm for evidence of others."
        ),
    ]
    code: Annotated[str, doc("Number or name within that kind, for example 79.")]
    fault_class: Annotated[FaultClass, doc("Who is to blame; the policy decides by it what may be done.")] = (
        msgspec.field(name="class")
    )
    severity: Annotated[Severity, doc("How bad it is.")]
    action: Annotated[FirstAction, doc("What the catalogue of faults advises as the first action.")]
    reason: Annotated[str, doc("What it means, in one sentence.")] = ""
    pci: Annotated[str | None, doc("PCI address as the driver printed it.")] = None
    gpu_index: Annotated[int | None, doc("Index of the GPU on its node.")] = None
    gpu_serial: Annotated[str | None, doc("Serial number of the GPU.")] = None
    line: Annotated[str, doc("The text it was read from, cut at 512 characters.")] = ""
    first_seen: Annotated[Moment | None, doc("When the agent first saw it.")] = None
    last_seen: Annotated[Moment | None, doc("When the agent last saw it.")] = None
    count: Annotated[int, doc("How often it was seen; logs fold and drop lines, so it is no measure of severity.")] = 1
    boot_id: Annotated[str, doc("Boot of the node in which it was seen.")] = msgspec.field(name="bootID", default="")
    injected: Annotated[bool, doc("True when a program wrote the line on purpose, for a test.")] = False
