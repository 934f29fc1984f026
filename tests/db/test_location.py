"""Where a store is."""

from pathlib import Path

import pytest
from fusionplan.db import Store, StoreUnavailable
from fusionplan.db.location import on_network, resolve

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/me/fast\\040disk xfs rw 0 0
host /mnt/over ext4 rw 0 0
host /mnt/over fuse.sshfs rw 0 0
"""


def test_the_environment_and_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "mine.db"))
    assert resolve(None).path == tmp_path / "mine.db"
    monkeypatch.setenv("PLANNER_STORE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert resolve(None).path == tmp_path / "cache" / "fusionplan" / "plans.db"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(None).path == tmp_path / ".cache" / "fusionplan" / "plans.db"
    with Store.open() as store:
        assert store.location == str(tmp_path / ".cache" / "fusionplan" / "plans.db")


def test_a_path_and_its_url_are_one_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plans.db"
    for location in (path, str(path), "plans.db", f"sqlite:///{path}", "sqlite:///plans.db"):
        assert resolve(location).path == path
    assert resolve("~/x.db").path == Path.home() / "x.db"


def test_a_password_is_not_shown():
    place = resolve("postgresql+psycopg://me:secret@host/plans")
    assert place.path is None
    assert place.shown == "postgresql+psycopg://me:***@host/plans"


@pytest.mark.parametrize(
    "location",
    [
        "",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x.db?mode=ro&uri=true",
        "://",
        "host:port://x",
        "nonsense://host/plans",
        "postgresql+nodriver://host/plans",
        "mssql+pymssql://host/plans",
    ],
)
def test_bad_places(location):
    with pytest.raises(StoreUnavailable):
        Store.open(location)


@pytest.mark.parametrize(
    "path, network",
    [
        ("/data/plans.db", False),
        ("/home/me/plans.db", True),
        ("/homely/plans.db", False),
        ("/home/me/fast disk/plans.db", False),
        ("/mnt/over/plans.db", True),
    ],
)
def test_network_file_systems(tmp_path, path, network):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert on_network(Path(path), mounts) is network
    assert not on_network(Path(path), tmp_path / "no such file")
