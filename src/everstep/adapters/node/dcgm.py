"""DCGM's exporter, by HTTP: a second opinion on the GPUs where one runs anyway."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import httpx2

from everstep.adapters.node.deadlines import Asking
from everstep.adapters.node.files import names, read_word, since_boot
from everstep.core.errors import Unreachable
from everstep.core.gpu_inventory import normal_pci
from everstep.core.health import Evidence, Fault
from everstep.core.node_state.dcgm_metrics import PREFIX, GpuMetrics, Sample, by_gpu, parse_sample
from everstep.core.node_state.dcgm_watch import GpuWatch, gpu_evidence, watched
from everstep.ports import PartlyUnreachable

PERIOD = 30.0  # seconds: the exporter itself asks DCGM every 30 s
DEADLINE = 8.0
_BODY_LIMIT = 16 << 20  # bytes; eight GPUs in 56 MIG instances with every field make 2 MB
_LINE_LIMIT = 1 << 16
_UUID = re.compile(r"GPU UUID:\s+(GPU-[0-9a-f-]+)")


def own_gpus(root: Path = Path("/")) -> frozenset[str]:
    """UUIDs of the GPUs that NVIDIA's driver lists in procfs. OSError when one cannot be read."""
    folder = root / "proc/driver/nvidia/gpus"
    texts = [read_word(folder / name / "information") or "" for name in names(folder)]
    return frozenset(uuid for text in texts for uuid in _UUID.findall(text))


class DcgmExporter:
    """A :class:`everstep.ports.StateSource` over the exporter's ``/metrics``.

    Args:
        url: of the metrics, for example ``http://127.0.0.1:9400/metrics``.
        known: faults on record in this boot: an XID among them that the gauge still shows is not of unknown age.
        own: UUIDs of this machine's GPUs. A service's address may reach the exporter of another node, whose GPUs
            have the same PCI addresses.
        deadline: seconds for one whole answer.
    """

    name = "DCGM exporter"
    period = PERIOD

    def __init__(
        self,
        url: str,
        known: Iterable[Fault] = (),
        own: Callable[[], Collection[str]] = own_gpus,
        clock: Callable[[], float] = since_boot,
        deadline: float = DEADLINE,
    ) -> None:
        self._url = url
        # Made once: reading every root certificate takes 20 ms. Without TLS there is nothing to verify.
        self._trust = ssl.create_default_context() if url.startswith("https:") else False
        self._own = own
        self._asking_own: Asking[Collection[str]] | None = None
        self._clock = clock
        self._deadline = deadline
        self._known: dict[str, set[str]] = {}
        for fault in known:
            if fault.kind == "xid" and fault.pci:
                self._known.setdefault(normal_pci(fault.pci), set()).add(fault.code)
        self._gpus: dict[str, GpuMetrics] = {}
        self._watches: dict[str, GpuWatch] = {}

    async def read(self) -> Sequence[Evidence]:
        """Everything that is wrong now.

        Unreachable when there is no whole answer in time; PartlyUnreachable when a GPU that was in it is no longer.
        """
        try:
            async with asyncio.timeout(self._deadline):
                answer = by_gpu(await self._samples())
                if answer and not self._watches:
                    await self._check_whose(answer)
        except TimeoutError:
            raise Unreachable(f"{self._url} gave no whole answer within {self._deadline:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as why:
            raise Unreachable(f"cannot read {self._url}: {why or type(why).__name__}") from why
        if not answer:
            raise Unreachable(f"{self._url} names no GPU: it has no answer from DCGM, or is something else")
        now = self._clock()
        for key, gpu in answer.items():
            known = frozenset(self._known.get(normal_pci(gpu.pci), ())) if gpu.pci else frozenset()
            self._watches[key] = watched(self._watches.get(key), gpu, now, known)
        absent = self._gpus.keys() - answer.keys()
        self._gpus |= answer
        found = [item for key, gpu in sorted(self._gpus.items()) for item in gpu_evidence(gpu, self._watches[key], now)]
        if absent:
            missing = ", ".join(sorted(absent))
            raise PartlyUnreachable(f"{self._url} says nothing more of {missing}", found)
        return found

    async def _check_whose(self, answer: Mapping[str, GpuMetrics]) -> None:
        """Unreachable unless the answer is about this machine."""
        if self._asking_own is None or self._asking_own.done.is_set():
            self._asking_own = Asking(self._own, "everstep own GPUs")
        await self._asking_own.ended()
        if not any(gpu.uuid in self._asking_own.answer() for gpu in answer.values()):
            shown = ", ".join(sorted(answer))
            raise Unreachable(
                f"{self._url} shows {shown}, none of which this machine's driver lists: "
                "give an address that reaches this node's own exporter"
            )

    async def _samples(self) -> list[Sample]:
        """The answer as samples. Only what matters is kept, however long the answer is."""
        samples: list[Sample] = []
        size, partial = 0, b""
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=self._deadline, verify=self._trust) as http,
            http.stream("GET", self._url) as response,
        ):
            if response.status_code != httpx2.codes.OK:
                raise Unreachable(f"{self._url} answers {response.status_code}")
            async for chunk in response.aiter_bytes():
                size += len(chunk)
                if size > _BODY_LIMIT:
                    raise Unreachable(f"{self._url} answers with more than {_BODY_LIMIT >> 20} MiB")
                *lines, partial = (partial + chunk).split(b"\n")
                samples += [sample for line in lines if line.startswith(PREFIX) and (sample := parse_sample(line))]
                if len(partial) > _LINE_LIMIT:
                    partial = b"#"  # no line is that long; whatever it was, its rest is no sample
        if partial.startswith(PREFIX):
            raise Unreachable(f"{self._url} broke off in the middle of a line")
        return samples
