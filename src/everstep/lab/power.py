"""What the supervisor offers to the simulated hardware: the power switch of every machine."""

from __future__ import annotations

from typing import Protocol

from everstep.lab.layout import Addresses, LabConfig, LabLayout


class Machines(Protocol):
    """The machines of one lab, as its hardware service sees them. A machine is named like its node.

    All methods raise LabError for a machine that does not exist.
    """

    @property
    def layout(self) -> LabLayout: ...

    @property
    def config(self) -> LabConfig: ...

    @property
    def addresses(self) -> Addresses: ...

    def names(self) -> list[str]:
        """The GPU machines (the system node is not one of them)."""
        ...

    def running(self, machine: str) -> bool: ...

    def boot_id(self, machine: str) -> str | None:
        """The id of the current boot (what the kubelet reports as bootID); None while the power is off."""
        ...

    async def power_off(self, machine: str) -> None:
        """Cuts the power: every process of the node is gone when this returns. Nothing happens if it is off."""
        ...

    async def power_on(self, machine: str) -> None:
        """Boots the machine; returns when its kubelet was started, not when the Node is Ready."""
        ...

    async def make_spare(self, machine: str) -> None:
        """Labels and taints the node as a warm spare of the lab's pool, clears what an earlier repair left on it."""
        ...

    def report(self, sentence: str) -> None:
        """Adds a line to the lab's events, seen by `everstep lab status`."""
        ...
