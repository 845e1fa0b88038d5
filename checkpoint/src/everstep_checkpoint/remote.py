"""A file system of fsspec, asked so that the answer can be trusted.

Clients of object stores raise errors of their own kinds (botocore's, aiohttp's, google's), fsspec's `exists` takes
every one of them for "not there", and s3fs gives a refused request the number that a file system gives to a name that
cannot be. Here "not there" is only what the store itself has said, and everything that went wrong is an OSError.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator

from .errors import CheckpointError, GivenUpError
from .reading import PROOF

_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    try:
        yield
    except (*_NOT_THERE, CheckpointError):
        raise
    except OSError as error:
        if error.errno in PROOF:  # a number that a client chose for an answer of its store proves nothing
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


class Remote:
    """What is below one fsspec URL. Paths are whole, as fsspec names them. Every method raises OSError.

    `root` is the URL's own path. Raises CheckpointError without fsspec or the package that knows the URL.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # noqa: PLC0415 - an extra: only who names a store needs it
        except ImportError as error:
            raise CheckpointError("a store needs fsspec: pip install 'everstep-checkpoint[fsspec]'") from error
        try:
            # Other processes write here too: a listing that was kept is wrong.
            self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise CheckpointError(f"a store needs the package that knows it: {error}") from error
        self.root = str(root).rstrip("/")

    @_asking()
    def names(self, folder: str) -> list[str]:
        """Last parts of the names in a folder; none when there is no such folder."""
        self._fs.invalidate_cache()
        try:
            return [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(folder, detail=False)]
        except FileNotFoundError:
            return []

    def has(self, path: str) -> bool:
        try:
            self.size(path)
        except _NOT_THERE:
            return False
        return True

    @_asking()
    def size(self, path: str) -> int:
        """In bytes."""
        return int(self._fs.info(path)["size"])

    @_asking()
    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(path))

    def chunks(self, path: str, size: int) -> Iterator[bytes]:
        """The content of a file, at most `size` bytes at a time."""
        with _asking(), self._fs.open(path, "rb") as stream:
            while chunk := stream.read(size):
                yield chunk

    @_asking()
    def stream(self, path: str, pieces: Iterable[memoryview], unwanted: Callable[[], bool]) -> int:
        """Write a file piece by piece; returns its bytes. Raises GivenUpError once `unwanted` says so."""
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        size = 0
        with self._fs.open(path, "wb") as stream:
            for piece in pieces:
                if unwanted():
                    raise GivenUpError("given up before it was written")
                size += stream.write(piece)
        return size

    @_asking()
    def write(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(path, data)

    @_asking()
    def put(self, path: str, data: bytes) -> None:
        """Whole or not there. An object store does so by itself; a local file system needs a rename."""
        if getattr(self._fs, "local_file", False):
            self._fs.pipe_file(f"{path}.new", data)
            self._fs.mv(f"{path}.new", path)
        else:
            self._fs.pipe_file(path, data)
        self._fs.invalidate_cache()

    @_asking()
    def remove(self, path: str) -> None:
        """One file."""
        self._fs.rm_file(path)
        self._fs.invalidate_cache()

    @_asking()
    def remove_tree(self, folder: str) -> None:
        """A folder with all that is in it; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(folder, recursive=True)
        self._fs.invalidate_cache()
