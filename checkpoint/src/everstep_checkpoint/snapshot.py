"""The state of one rank, copied to host memory in one go, so that the training may go on while it is written.

A pickle (protocol 5) with its large buffers apart. The buffers are copied into one arena that the next snapshot uses
again: memory stays at one copy of the state, and only the first snapshot pays for fresh pages.
"""

from __future__ import annotations

import io
import mmap
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_ALIGN = 64  # bytes; a cache line
_TOUCHED = 16 << 20  # bytes touched at a time
_IN_BAND = 4096  # bytes below which a tensor is not worth a buffer of its own

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`body` is the pickle, `views` are the buffers that belong to it, in their order.

    `live` says that they are the program's own memory and no copy: who reads them twice may see two things.
    """

    body: bytes
    views: list[memoryview] = field(default_factory=list)
    live: bool = False

    @property
    def bytes(self) -> int:
        return len(self.body) + sum(view.nbytes for view in self.views)


class _Pickler(pickle.Pickler):
    """Also hands out the memory of torch tensors as it lies: torch itself would write a whole file into the pickle."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        return _reduce_tensor(torch, obj)


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
    if not plain or tensor.device.type == "meta" or type(tensor.data) is not torch.Tensor:
        return NotImplemented
    host = tensor.detach().cpu().contiguous()
    size = host.numel() * host.element_size()
    octets = host.reshape(-1).view(torch.uint8).numpy()
    raw = pickle.PickleBuffer(octets) if size >= _IN_BAND else octets.tobytes()
    is_parameter = type(tensor) is not torch.Tensor
    return _tensor, (raw, str(host.dtype).removeprefix("torch."), tuple(host.shape), tensor.requires_grad, is_parameter)


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool) -> Any:
    """A tensor on the CPU: `load_state_dict` moves it to where the model is."""
    import torch  # noqa: PLC0415 - only a program that has torch saved one

    kind = getattr(torch, dtype)
    octets = memoryview(raw)
    if octets.nbytes == 0:
        found = torch.empty(shape, dtype=kind)
    else:
        found = torch.frombuffer(bytearray(octets) if octets.readonly else octets, dtype=kind).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(found, requires_grad=requires_grad)
    return found.requires_grad_(requires_grad)


class HostMemory:
    """One arena that holds one snapshot at a time: whoever takes the next must be done with the last."""

    def __init__(self) -> None:
        self._arena: memoryview = memoryview(b"")
        self._released = False
        self._lock = threading.Lock()

    def prepare(self, size: int) -> threading.Thread:
        """Have `size` bytes of memory ready before the first snapshot: fresh pages cost more time than the copy."""
        thread = threading.Thread(target=self._prepare, args=(size,), name="everstep-memory", daemon=True)
        thread.start()
        return thread

    def _prepare(self, size: int) -> None:
        try:
            arena = _pages(size)
            with open("/dev/zero", "rb", buffering=0) as zeros:
                for start in range(0, size, _TOUCHED):
                    if len(self._arena) or self._released:
                        return  # a snapshot came first, or none will come
                    zeros.readinto(arena[start : start + _TOUCHED])  # outside the GIL
        except OSError:
            return  # then the first snapshot pays for its pages itself, or says what is wrong
        with self._lock:
            if not len(self._arena) and not self._released:
                self._arena = arena

    def take(self, captured: Any) -> Snapshot:
        """Copy `captured`; nothing of it is referenced afterwards. Raises MemoryError, and what pickling raises."""
        body, buffers = _pickled(captured)
        sources = [buffer.raw() for buffer in buffers]
        starts, total = [], 0
        for source in sources:
            starts.append(total)
            total += -(-source.nbytes // _ALIGN) * _ALIGN
        with self._lock:
            if total > len(self._arena):
                self._arena = memoryview(b"")  # let the old one go first: never two of them
                self._arena = _pages(total)
        views = []
        for start, source in zip(starts, sources, strict=True):
            view = self._arena[start : start + source.nbytes]
            view[:] = source
            views.append(view)
        for buffer in buffers:
            buffer.release()
        return Snapshot(body, views)

    def release(self) -> None:
        """Give the memory back: at once, or when the snapshot that is in it is no longer used."""
        with self._lock:
            self._released, self._arena = True, memoryview(b"")


def borrow(captured: Any) -> Snapshot:
    """`captured` as it lies in memory, for who holds the training until it is written. Raises what pickling raises."""
    body, buffers = _pickled(captured)
    return Snapshot(body, [buffer.raw() for buffer in buffers], live=True)


def _pickled(captured: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(captured)
    return file.getvalue(), buffers


def _pages(size: int) -> memoryview:
    """Fresh anonymous memory, in huge pages where the kernel has them."""
    pages = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)
