"""Where a store is: a path or a SQLAlchemy URL, and what kind of file system lies under a path."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import StoreUnavailable

# File systems that several hosts (or a guest and its host) see without sharing memory. The WAL
# index is shared memory, so WAL on them loses writes: https://sqlite.org/wal.html, "overview" 3.
# A doubtful one is listed: a rollback journal is merely slower.
NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "drvfs", "fhgfs", "glusterfs", "gpfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "smb", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs"}
    | {f"fuse.{name}" for name in ("ceph", "gcsfuse", "glusterfs", "juicefs", "rclone")}
    | {"fuse.s3fs", "fuse.sshfs"}
)


@dataclass(frozen=True, slots=True)
class Place:
    """A store's URL, and its path where it is a SQLite file."""

    url: URL
    path: Path | None

    @property
    def shown(self) -> str:
        """For people: the path, or the URL without its password."""
        return str(self.path or self.url.render_as_string(hide_password=True))


def default_path() -> Path:
    """The user's own store, when nothing else is said."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fusionplan" / "plans.db"


def resolve(location: str | Path | None) -> Place:
    """The place meant by an option; None is $PLANNER_STORE, else the user's cache directory."""
    if location is None:
        location = os.environ.get("PLANNER_STORE") or default_path()
    # Path() folds "//" into "/": a URL that came as a Path would otherwise name a file "sqlite:".
    text = str(location)
    if isinstance(location, Path) or "://" not in text:
        if not text.strip():
            raise StoreUnavailable("The store's location is empty: give a path or a database URL.")
        return _file(Path(text).expanduser())
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        scheme = text.partition("://")[0]
        message = f"The store's URL ({scheme}://...) cannot be parsed: give a path or a valid URL."
        raise StoreUnavailable(message) from error
    if url.get_backend_name() != "sqlite":
        return Place(url, None)
    database = url.database or ""
    if database in ("", ":memory:") or database.startswith("file:") or url.query:
        raise StoreUnavailable(
            f"{text} is not a plain SQLite file: give its path, as in /folder/plans.db "
            "or sqlite:////folder/plans.db."
        )
    return _file(Path(database))


def _file(path: Path) -> Place:
    path = Path(os.path.abspath(path))
    return Place(URL.create("sqlite", database=str(path)), path)


def on_network(path: Path, mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether the path lies on a network file system; no where the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    real = Path(os.path.realpath(path))
    depth, kind = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        # The deepest mount holds the path, and of two on one point the later hides the earlier.
        if len(mount.parts) >= depth and real.is_relative_to(mount):
            depth, kind = len(mount.parts), fields[2]
    return kind in NETWORK_FILE_SYSTEMS
