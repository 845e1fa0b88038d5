"""FleetIncident: what many nodes share. Written by the controller, for people to read."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everstep.api.meta import Moment
from everstep.api.schema import doc
from everstep.core.correlation.fleet import Blame


class FleetIncidentStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """One cause that several nodes report; none of them is to blame."""

    blame: Annotated[
        Blame, doc("job: its own code. storage: one server. common: hardware of many nodes at once, a person looks.")
    ]
    about: Annotated[str, doc("The job (namespace/SlurmCluster/id), the file server, or the code.")]
    code: Annotated[str, doc("<kind>:<code> that the nodes report.")]
    reason: Annotated[str, doc("It in one sentence.")]
    nodes: Annotated[list[str], doc("Every node that has reported it, in order.")]
    node_count: Annotated[int, doc("How many they are.")]
    state: Annotated[str, doc("Active or Over.", enum=["Active", "Over"])]
    first_seen: Annotated[Moment, doc("When the first node reported it.")]
    told: Annotated[bool, doc("Whether the notice to people is out.")] = False
    ended_at: Annotated[Moment | None, doc("When it was no longer seen; a week later the object is deleted.")] = None
