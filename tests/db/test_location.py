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


def test_the_environment_and_then_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "mine.db"))
    assert resolve(None).path == tmp_path / "mine.db"
    monkeypatch.setenv("PLANNER_STORE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert resolve(None).path == tmp_path / "data" / "fusionplan" / "plans.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    own = tmp_path / ".local" / "share" / "fusionplan" / "plans.db"
    assert resolve(None).path == own
    with Store.open() as store:
        assert store.location == str(own)


def test_a_store_among_the_caches_is_still_found(monkeypatch, tmp_path):
    """Unless there is one in the data folder."""
    monkeypatch.delenv("PLANNER_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    older, own = (tmp_path / name / "fusionplan" / "plans.db" for name in ("cache", "data"))
    Store.open(older).close()
    assert resolve(None).path == older
    Store.open(own).close()
    assert resolve(None).path == own


@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_CACHE_HOME", None])
def test_without_a_home_one_folder_is_enough(monkeypatch, tmp_path, variable):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("PLANNER_STORE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if variable is None:
        with pytest.raises(StoreUnavailable, match="no home folder"):
            resolve(None)
        return
    monkeypatch.setenv(variable, str(tmp_path))
    path = tmp_path / "fusionplan" / "plans.db"
    assert resolve(None).path == path
    Store.open(path).close()
    assert resolve(None).path == path


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
