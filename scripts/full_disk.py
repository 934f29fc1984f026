"""Fills a real disk (a small tmpfs) while something is written to it, and counts what came of it.

    python scripts/full_disk.py [TRIAL...] [--times N] [--seed S]

Trials: store (trials are added until the disk is full), bundle (a bundle is written over an older
one, and a key and a list of trusted keys are made), cache (kernels are compiled by Triton, whose
cache and whose spare folder are on that disk), tune (a whole tune in Triton's interpreter with its
store, its caches, its home and its temporary files there, then the model by `load`). Each prints
how often it was tried, and how often all was well: nothing acknowledged was lost, what was there
before is there, every error named what is full, and with room again the same went well. Runs in a
mount namespace of its own: as root, or where users may make such.
"""

import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KIB = 1 << 10
ROOM = "64m"
OWN_NAMESPACE = "FUSIONPLAN_OWN_MOUNTS"

TUNED = """
import sys, torch, fusionplan
x, b = torch.randn(4, 32), torch.randn(32)
function = lambda x, b: torch.softmax(x + b, -1)
try:
    fusionplan.tune(function, (x, b), trials=4, seconds=12, store=sys.argv[1], progress=False)
    print("tuned")
except Exception as error:
    print(f"{type(error).__module__}.{type(error).__name__}: {error}")
model = fusionplan.load(function, store=sys.argv[1])
torch.testing.assert_close(model(x, b), function(x, b))
print("runs")
"""


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """A disk of so many bytes at the folder; what is given makes it a large one."""
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(folder)]
    subprocess.run([*mount, "-o", f"size={size}"], check=True)
    try:
        yield lambda: subprocess.run([*mount, "-o", f"remount,size={ROOM}"], check=True) and None
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, left: int) -> None:
    """With a file, until so many bytes are left."""
    found = os.statvfs(folder)
    with (folder / "filling").open("wb") as file:
        file.write(bytes(max(0, found.f_bavail * found.f_frsize - left)))


def store(folder: Path, dice: random.Random) -> bool:
    own = _reliability()
    path = folder / "plans.db"
    with disk(folder, dice.randrange(40 * KIB, 900 * KIB)) as make_room:
        try:
            own.filled(str(path))
        except own.StoreError as error:  # full before there is a store
            make_room()
            own.filled(str(path))
            return f"{path} cannot grow, the disk is full" in str(error) and own.kept(path) == {}
        writer = own.child("write", path, 0, 5_000)
        output, errors = writer.communicate(timeout=300)
        told = own.acknowledged(output)
        if writer.returncode == 0 or f"{path} cannot grow, the disk is full" not in errors:
            print(errors[-500:])
            return False
        make_room()
        found = own.kept(path)
        with own.Store.open(path) as opened:  # and it goes on
            opened.add_trial(own.trial(9_999))
        return told.items() <= found.items() and len(found) <= len(told) + 1


def bundle(folder: Path, dice: random.Random) -> bool:
    from fusionplan.bundles.contents import Contents, open_bundle, write
    from fusionplan.bundles.signing import private_key, trust, trusted
    from fusionplan.db import Snapshot
    from fusionplan.planner.costs.device import H200
    from fusionplan.planner.errors import BundleError
    from fusionplan.tuner.records.ledger import device_record

    def written(number: int, pages: int) -> Contents:
        about = {"number": str(number), "filled": "x" * 4096 * pages}
        return Contents(Snapshot((device_record(H200),)), about=about)

    path = folder / "model.plan"
    with disk(folder, 256 * KIB) as make_room:
        os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        fill(folder, dice.choice([0, 4 * KIB, 8 * KIB, 256 * KIB]))
        try:
            own = private_key()
        except BundleError as error:
            if str(folder) not in str(error):
                return False
            (folder / "filling").unlink()
            own = private_key()
        (folder / "filling").unlink(missing_ok=True)
        write(path, written(1, 4), own)
        fill(folder, dice.randrange(0, 160 * KIB))
        well = True
        for size in (0, 40):
            try:
                write(path, written(2, size), own)
            except BundleError as error:
                well &= str(path) in str(error)
        try:
            trust(bytes(32), "another")
        except BundleError as error:
            well &= "cannot be written" in str(error)
        well &= own.public in trusted()
        well &= open_bundle(path, trusted()).about["number"] in ("1", "2")
        # Nothing is left of what was not written.
        well &= sorted(p.name for p in folder.iterdir()) == ["config", "filling", "model.plan"]
        names = {p.name for p in (folder / "config/fusionplan").iterdir()}
        well &= names <= {"bundle-key.pem", "trusted-keys"}
        make_room()
        write(path, written(3, 40), own)
        return well and open_bundle(path, trusted()).about["number"] == "3"


def cache(folder: Path, dice: random.Random) -> bool:
    from fusionplan.planner.codegen.source import Buffer, KernelSource
    from fusionplan.planner.runtime.machine_code.compile import (
        CompileFailed,
        Target,
        compile_kernel,
    )
    from fusionplan.planner.runtime.machine_code.kernel_cache import is_whole
    from triton import knobs

    number = dice.randrange(1 << 30)
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef filled(out):\n"
        f"    at = tl.arange(0, 128)\n    tl.store(out + at, at * {number}.0)\n"
    )
    source = KernelSource("filled", text, (Buffer("out", 0, "float32"),), 1, 4, 1)

    def compiled() -> bool:
        kernel = compile_kernel(source, Target())
        return is_whole(kernel.kernel.asm["cubin"])

    spare = dice.random() < 0.5
    with disk(folder, 128 * KIB) as make_room, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        knobs.cache.dir = str(folder / "cache")
        (folder / "spare").mkdir()
        tempfile.tempdir = str(folder / "spare") if spare else None
        fill(folder, dice.randrange(0, 64 * KIB))
        try:
            well = compiled()
        except CompileFailed as error:
            well = spare and error.transient
            if not well:
                print(error)
        make_room()
        knobs.cache.dir = str(folder / "cache")
        # By whatever the full disk has left in the cache.
        well &= compiled()
        tempfile.tempdir = None
        return well


def tune(folder: Path, dice: random.Random) -> bool:
    own = _reliability()
    path = folder / "plans.db"
    with disk(folder, int(KIB * 20 * 2 ** dice.uniform(0.0, 5.0))) as make_room:
        places = {"HOME": "home", "TMPDIR": "tmp", "TRITON_CACHE_DIR": "triton"}
        places |= {"TORCHINDUCTOR_CACHE_DIR": "inductor"}
        env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        env |= {name: str(folder / place) for name, place in places.items()}
        for place in ("home", "tmp"):
            (folder / place).mkdir()
        env |= {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-c", TUNED, str(path)]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=400, check=False
        )
        said = done.stdout.splitlines()
        full = "fusionplan.db.errors.StoreUnavailable" in said[0] and "disk is full" in said[0]
        well = done.returncode == 0 and said[-1] == "runs" and (said[0] == "tuned" or full)
        if not well:
            print(done.stdout[-500:], done.stderr[-1500:])
        make_room()
        own.filled(str(path))
        with own.Store.open(path) as opened:
            return well and opened.problems() == []


def _reliability():
    spec = importlib.util.spec_from_file_location(
        "reliability", Path(__file__).with_name("reliability.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TRIALS = {each.__name__: each for each in (store, bundle, cache, tune)}


def main() -> int:
    if OWN_NAMESPACE not in os.environ:
        os.environ[OWN_NAMESPACE] = "1"
        mounts = ["--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        os.execvp("unshare", ["unshare", *mounts, sys.executable, *sys.argv])
    return _reliability().counted(__doc__, TRIALS)


if __name__ == "__main__":
    sys.exit(main())
