"""CustomResourceDefinitions, generated from the typed structs: ``python -m everstep.api.crds DIRECTORY``.

The chart carries the generated files; a test compares them with what the structs say now.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from everstep.api.fleet_incident import FleetIncidentStatus
from everstep.api.meta import GROUP, VERSION
from everstep.api.node_health import NodeHealthStatus
from everstep.api.remediation import RemediationSpec, RemediationStatus
from everstep.api.remediation_policy import RemediationPolicySpec
from everstep.api.schema import structural
from everstep.api.slurm_cluster import SlurmClusterSpec, SlurmClusterStatus


@dataclass(frozen=True, slots=True)
class Column:
    """One column of ``kubectl get``; ``wide``: only with ``-o wide``."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""


AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of the group, as a CustomResourceDefinition needs it.

    Attributes:
        subresource: status is written by its own request, and a write of the object leaves it alone.
        rules: CEL validations on the whole object, as (rule, message).
    """

    kind: str
    plural: str
    short: str
    description: str
    spec: type[msgspec.Struct] | None = None
    status: type[msgspec.Struct] | None = None
    namespaced: bool = False
    subresource: bool = True
    columns: tuple[Column, ...] = (AGE,)
    rules: tuple[tuple[str, str], ...] = ()
    categories: tuple[str, ...] = field(default=("everstep",))

    @property
    def name(self) -> str:
        return f"{self.plural}.{GROUP}"


KINDS: tuple[Kind, ...] = (
    Kind(
        "NodeHealth",
        "nodehealths",
        "nh",
        "What a node's own agent says about the health of the node. Named like the node; only its agent writes it.",
        status=NodeHealthStatus,
        subresource=False,  # one writer, who owns the whole object: one request creates or updates it
        columns=(
            Column("Verdict", ".status.verdict"),
            Column("Faults", ".status.summary.faults"),
            Column("GPUs", ".status.summary.gpus"),
            Column("Since", ".status.since", "date"),
            AGE,
            Column("Reason", ".status.reason", wide=True),
        ),
    ),
    Kind(
        "Remediation",
        "remediations",
        "rem",
        "One incident on one node: what broke, what was done about it step by step, and how the jobs resumed.",
        spec=RemediationSpec,
        status=RemediationStatus,
        columns=(
            Column("Node", ".spec.nodeName"),
            Column("Fault", ".spec.title"),
            Column("Stage", ".status.stage"),
            Column("Outcome", ".status.outcome"),
            Column("Replacement", ".status.replacement.node"),
            Column("Jobs", ".status.jobList"),
            AGE,
            Column("Reason", ".status.reason"),
        ),
        rules=(("self.spec == oldSelf.spec", "spec is written once, when the incident is opened"),),
    ),
    Kind(
        "FleetIncident",
        "fleetincidents",
        "fi",
        "One cause that many nodes share: a job's own fault, a file server, a common cause.",
        status=FleetIncidentStatus,
        subresource=False,  # one writer, who owns the whole object
        columns=(
            Column("Blame", ".status.blame"),
            Column("About", ".status.about"),
            Column("Nodes", ".status.nodeCount", "integer"),
            Column("State", ".status.state"),
            Column("Since", ".status.firstSeen", "date"),
            Column("Reason", ".status.reason"),
        ),
    ),
    Kind(
        "RemediationPolicy",
        "remediationpolicies",
        "rp",
        "What the platform team allows Everstep to do about broken nodes. The one named default is in force.",
        spec=RemediationPolicySpec,
        columns=(
            Column("Mode", ".spec.mode"),
            Column("Budget", ".spec.budget.maxConcurrent", "integer"),
            Column("Grace", ".spec.graceSeconds", "integer"),
            AGE,
        ),
        rules=(("self.metadata.name == 'default'", "the policy in force is the one named default; name it so"),),
    ),
    Kind(
        "SlurmCluster",
        "slurmclusters",
        "eslurm",
        "A whole Slurm cluster on Kubernetes: nodes, partitions, users, storage, login.",
        spec=SlurmClusterSpec,
        status=SlurmClusterStatus,
        namespaced=True,
        columns=(
            Column("Slurm", ".spec.slurmVersion"),
            Column("Nodes", ".status.nodeSummary"),
            Column("Login", ".status.login.endpoint"),
            Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
            AGE,
            Column("Message", ".status.message"),
        ),
        rules=(
            ("size(self.metadata.name) <= 40", "the name of a SlurmCluster has 40 characters at most"),
            (
                "self.metadata.name.matches('^[a-z][a-z0-9-]*$')",
                "the name of a SlurmCluster has letters, digits and dashes, a letter first",
            ),
            (
                "self.spec.slurmVersion >= oldSelf.spec.slurmVersion",
                "an earlier slurmctld cannot read the state of a later one: make a new SlurmCluster",
            ),
        ),
    ),
)


def definition(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition object of one kind."""
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
        "kind": {"type": "string", "description": f"{kind.kind}."},
        "metadata": {"type": "object"},
    }
    if kind.spec is not None:
        properties["spec"] = structural(kind.spec, defaults=True)
    if kind.status is not None:
        properties["status"] = structural(kind.status, defaults=False)
    schema: dict[str, Any] = {"type": "object", "description": kind.description, "properties": properties}
    if kind.spec is not None:
        schema["required"] = ["spec"]
    if kind.rules:
        schema["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in kind.rules]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    if kind.subresource and kind.status is not None:
        version["subresources"] = {"status": {}}
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "shortNames": [kind.short],
        "categories": list(kind.categories),
    }
    scope = "Namespaced" if kind.namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.name},
        "spec": {"group": GROUP, "names": names, "scope": scope, "versions": [version]},
    }


def _column(column: Column) -> dict[str, Any]:
    drawn: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**drawn, "priority": 1} if column.wide else drawn


def render(kind: Kind) -> str:
    """The file that the chart carries."""
    note = "# Generated by `python -m everstep.api.crds charts/everstep/crds`; change src/everstep/api instead.\n"
    return note + yaml.safe_dump(definition(kind), sort_keys=False, width=118)


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        (directory / f"{kind.plural}.yaml").write_text(render(kind))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m everstep.api.crds DIRECTORY")
    main(Path(sys.argv[1]))
