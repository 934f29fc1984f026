"""The location of a store: a path or a SQLAlchemy URL, and the kind of file system that a path
is on.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import StoreUnavailable
from .user_store import default_path

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
class StorePlace:
    """A store's URL, and its path where it is a SQLite file."""

    url: URL
    path: Path | None

    @property
    def shown(self) -> str:
        """For people: the path, or the URL without its passwords."""
        return str(self.path or without_secrets(self.url))

    @property
    def secrets(self) -> frozenset[str]:
        """Passwords in the URL, which a driver's message may repeat."""
        return frozenset(_secrets(self.url))


def without_secrets(url: URL) -> str:
    """The URL with stars for its password, and for what its query calls so."""
    hidden = {name: "***" for name in url.query if _SECRET.search(name)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _secrets(url: URL) -> Iterator[str]:
    found = [value for name, value in url.query.items() if _SECRET.search(name)]
    for each in (url.password, *found):
        values = [each] if isinstance(each, str) else each or ()
        for value in values:
            yield from {value, quote(value, safe=""), quote_plus(value)} - {""}


_SECRET = re.compile(r"pass|secret|token|key$|credential", re.IGNORECASE)
"""Parameters of drivers that are nobody else's business, such as sslpassword."""


def resolve(location: str | Path | None) -> StorePlace:
    """The place meant by an option; None is $PLANNER_STORE, else the user's data folder."""
    if location is None:
        location = os.environ.get("PLANNER_STORE") or default_path()
    # Path() folds "//" into "/": a URL that came as a Path would otherwise name a file "sqlite:".
    text = str(location)
    if isinstance(location, Path) or "://" not in text:
        if not text.strip():
            raise StoreUnavailable("The store's location is empty: give a path or a database URL.")
        try:
            return _file(Path(text).expanduser())
        except RuntimeError as error:
            raise StoreUnavailable(f"{text}: {error}: give a whole path.") from error
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        scheme = text.partition("://")[0]
        message = f"The store's URL ({scheme}://...) cannot be parsed: give a path or a valid URL."
        raise StoreUnavailable(message) from error
    if url.get_backend_name() != "sqlite":
        return StorePlace(url, None)
    database = url.database or ""
    if database in ("", ":memory:") or database.startswith("file:") or url.query:
        raise StoreUnavailable(
            f"{without_secrets(url)} is not a plain SQLite file: give its path, as in "
            "/folder/plans.db or sqlite:////folder/plans.db."
        )
    return _file(Path(database))


def _file(path: Path) -> StorePlace:
    path = Path(os.path.abspath(path))
    return StorePlace(URL.create("sqlite", database=str(path)), path)


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
