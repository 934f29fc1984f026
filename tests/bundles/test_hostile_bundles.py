"""What a bundle may not do: each is refused with one error, before anything of it is used."""

import json
import os
import random
from dataclasses import replace

import pytest
from fusionplan.bundles import container, making
from fusionplan.bundles.container import MAGIC, MOST_DEPTH, seal, unseal
from fusionplan.bundles.contents import Code, Contents, check, contents, open_bundle
from fusionplan.bundles.signing import Private, private_key, shown, trust, trusted
from fusionplan.db import KernelRecord
from fusionplan.planner.errors import BundleError
from fusionplan.planner.graph.graph import INPUT, Graph, Node, Ref, TensorType
from fusionplan.planner.graph.sizes import Size
from fusionplan.planner.runtime.machine_code.compile import CompileFailed
from fusionplan.planner.runtime.machine_code.host_code import SUFFIX, HostModule, put
from fusionplan.planner.runtime.machine_code.ready import MachineCode
from fusionplan.planner.versions import CODEGEN
from fusionplan.tuner.workers.lab import Group
from triton import knobs

RANDOM = random.Random(23)
HEAD = len(MAGIC) + 32 + 64
KERNEL = {"nodes": [], "outputs": []}


@pytest.fixture
def whole(records_of):
    """Contents with machine code."""
    kernel = MachineCode("ab" * 32, "fused_add", {"name": "fused_add", "shared": 0}, b"cubin" * 40)
    host = HostModule("ABCD", f"cuda_utils{SUFFIX}", b"\x7fELF")
    return Contents(records_of(), Code({"codegen": CODEGEN}, (kernel,), (host,)))


def test_what_is_written_is_read(bundle, whole):
    found = open_bundle(bundle(whole), trusted())
    assert found.records == whole.records
    assert found.code == whole.code
    assert found.signer == shown(private_key().public)


@pytest.mark.parametrize("varies", [False, True])
def test_a_kernel_as_a_tune_keeps_it_is_what_its_key_says(records_of, varies):
    rows = Size(64, (64, 96), 16) if varies else 64
    x = TensorType((rows, 128), (128, 1), "float32")
    group = Group.of(
        Graph(
            (
                Node(0, "mine", INPUT, type=x),
                Node(1, "own", "aten.relu.default", (Ref(0),), type=x),
            ),
            (1,),
        ),
        "relu",
    )
    records = records_of()
    kernel = KernelRecord(group.key, records.graphs[0].key, "pointwise", {"graph": group.data})
    check(replace(records, kernels=(*records.kernels, kernel)))


def test_a_link_that_waits_beside_a_bundle_is_not_followed(bundle, tmp_path):
    """In a folder of many users another one could have it written over the user's own file."""
    own = tmp_path / "own"
    own.write_text("mine")
    for name in ("plans.bundle.part", "plans.bundle"):
        (tmp_path / name).symlink_to(own)
    written = bundle()
    assert own.read_text() == "mine"
    assert not written.is_symlink()
    assert open_bundle(written, trusted()).records.plans


def test_the_same_contents_are_the_same_bytes(whole, private):
    document = {"b": [1, {"y": 2, "x": 1}], "a": None}
    blobs = [b"two", b"one", b"two"]
    again = seal(dict(reversed(document.items())), reversed(blobs), private)
    assert seal(document, blobs, private) == again


def places(size):
    """Every byte of what stands before the document, and a sample of the others."""
    return [*range(HEAD + 16), *RANDOM.sample(range(HEAD + 16, size), 120), size - 1]


def test_no_bit_may_be_changed(bundle, whole):
    data = bundle(whole).read_bytes()
    keys = trusted()
    unseal(data, keys)
    for place in places(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << RANDOM.randrange(8)
        with pytest.raises(BundleError):
            unseal(bytes(changed), keys)


def test_nothing_may_be_cut_off_or_added(bundle, whole):
    data = bundle(whole).read_bytes()
    for size in places(len(data)):
        with pytest.raises(BundleError):
            unseal(data[:size], trusted())
    with pytest.raises(BundleError, match="altered"):
        unseal(data + b"\0", trusted())


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(BundleError, match="pipe is not a regular file"):
        open_bundle(path, trusted())


def test_an_unknown_signer_is_refused_and_named(bundle, monkeypatch, tmp_path):
    path = bundle()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    with pytest.raises(BundleError, match="not among the keys that you trust") as told:
        open_bundle(path, trusted())
    assert "ed25519:" in str(told.value)
    assert str(path) in str(told.value)


def test_a_signature_of_another_key_is_refused(bundle, monkeypatch, tmp_path):
    """The public key of the victim, the signature of the attacker."""
    data = bundle().read_bytes()
    keys = trusted()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "attacker"))
    attacker = private_key()
    body = data[HEAD:]
    head = data[: len(MAGIC) + 32]
    with pytest.raises(BundleError, match="altered"):
        unseal(head + attacker.sign(head + body) + body, keys)


def signed(private: Private, body: bytes) -> bytes:
    head = MAGIC + private.public
    return head + private.sign(head + body) + body


def part(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


@pytest.mark.parametrize(
    "body, fault",
    [
        (b"", "cut short"),
        (part(b"{}")[:-1], "lengths"),
        ((2**63).to_bytes(8, "big") + b"{}", "lengths"),
        (part(b"{}") + b"\0\0\0", "lengths"),
        (part(b"not json"), "no JSON"),
        (part(b'{"a": NaN}'), "no JSON"),
        (part(b"[]"), "no object"),
        (part(b"[" * 200_000 + b"]" * 200_000), "no JSON|nested"),
        (part(b'{"a":' * (MOST_DEPTH + 1) + b"1" + b"}" * (MOST_DEPTH + 1)), "nested"),
        (part(b'{"a": ' + b"9" * 5000 + b"}"), "no JSON"),
        (part(b"\xff\xfe{}"), "no JSON"),
    ],
)
def test_also_what_a_trusted_key_signs_is_checked(private, body, fault):
    with pytest.raises(BundleError, match=fault):
        unseal(signed(private, body), {private.public})


def test_limits(private, monkeypatch, tmp_path):
    data = seal({}, [b"one", b"two"], private)
    path = tmp_path / "large"
    path.write_bytes(data)
    for name, most in (("MOST_BYTES", 120), ("MOST_DOCUMENT_BYTES", 1), ("MOST_BLOBS", 2)):
        with monkeypatch.context() as patched:
            patched.setattr(container, name, most)
            with pytest.raises(BundleError, match=r"large|many"):
                container.read(path, trusted())
            with pytest.raises(BundleError, match=r"large|many|larger"):
                seal({}, [b"one", b"two"], private)


@pytest.mark.parametrize(
    "what, change, fault",
    [
        ("format", lambda d: 2, "another version"),
        ("records", lambda d: None, "records"),
        ("about", lambda d: {"made": 3}, "about"),
        ("records.plans.0.payload.graph_key", lambda v: "c" * 32, "is another"),
        ("records.plans.0.payload.groups", lambda v: "all", "groups"),
        ("records.plans.0.evidence", lambda v: "modelled", "is another"),
        ("records.plans.0.versions", lambda v: {}, "is another"),
        ("records.plans.0.key", lambda v: "../../plan", "is no key"),
        ("records.graphs.0.payload.nodes.2.op", lambda v: "aten.sub.Tensor", "is another"),
        ("records.graphs.0.name", lambda v: "n" * 300, "too long"),
        ("records.trials.0.subject", lambda v: "e" * 32, "not in it"),
        ("records.trials.0.device_key", lambda v: "f" * 16, "device"),
        ("records.trials.0.measured_s", lambda v: "soon", "measured_s"),
        ("records.devices", lambda v: [], "device"),
        ("records.devices.0.profile.sm_count", lambda v: 7, "device .* is another"),
        ("records.devices.0.profile", lambda v: {}, "no device profile"),
        ("records.kernels.0.payload", lambda v: {"graph": KERNEL}, "kernel .* is another"),
        ("records.kernels.0.payload", lambda v: {"form": ""}, "graph"),
        ("code.kernels.0.cubin", lambda v: "../cubin", "cubin"),
    ],
)
def test_records_are_what_their_keys_say(bundle, whole, private, what, change, fault):
    sealed = container.read(bundle(whole), trusted())
    document = json.loads(json.dumps(sealed.document))
    *path, last = [int(x) if x.isdigit() else x for x in what.split(".")]
    place = document
    for step in path:
        place = place[step]
    place[last] = change(place[last])
    with pytest.raises((ValueError, KeyError), match=fault):
        contents(replace(sealed, document=document))
    file = bundle(whole, "again.bundle")
    file.write_bytes(seal(document, sealed.blobs.values(), private))
    with pytest.raises(BundleError, match="nothing of it was used"):
        open_bundle(file, trusted())


@pytest.mark.parametrize(
    "folder, name",
    [("../..", f"cuda_utils{SUFFIX}"), ("ABC", f"../evil{SUFFIX}"), ("ABC", "/etc/passwd")],
)
def test_no_module_is_put_beside_the_cache(folder, name, tmp_path):
    with pytest.raises(ValueError, match="no module"):
        put([HostModule(folder, name, b"data")])


@pytest.mark.process
def test_modules_of_another_python_are_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    other = HostModule("ABC", "cuda_utils.cpython-399-x86_64-linux-gnu.so", b"other")
    put([other, HostModule("ABC", f"cuda_utils{SUFFIX}", b"own")])
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [(path.name, path.read_bytes()) for path in found] == [(f"cuda_utils{SUFFIX}", b"own")]


def test_a_kernel_that_takes_aligned_buffers_alone(monkeypatch):
    """Its other variant need not compile; for want of memory nothing is left out."""

    def compile_kernel(source, target, aligned=True):
        if not aligned:
            raise CompileFailed("does not compile", transient)
        return source

    monkeypatch.setattr(making, "compile_kernel", compile_kernel)
    monkeypatch.setattr(making, "plain", lambda source: (source, None))
    transient = False
    assert list(making._compiled("kernel", None)) == ["kernel"]
    transient = True
    with pytest.raises(CompileFailed):
        list(making._compiled("kernel", None))


class TestKeys:
    def test_a_private_key_is_for_its_owner_alone(self, home, private):
        file = home / "bundle-key.pem"
        assert file.stat().st_mode & 0o777 == 0o600
        assert private_key().public == private.public
        file.chmod(0o644)
        with pytest.raises(BundleError, match="chmod 600"):
            private_key()

    def test_a_damaged_key_is_named(self, home, private):
        (home / "bundle-key.pem").write_text("no key")
        with pytest.raises(BundleError, match=r"bundle-key\.pem"):
            private_key()

    def test_a_list_that_others_may_write_is_not_used(self, home, private):
        (home / "trusted-keys").chmod(0o666)
        with pytest.raises(BundleError, match="others may write"):
            trusted()

    @pytest.mark.parametrize("owner, taken", [(0, True), (1, False)])
    def test_a_list_of_another_user_is_not_used(self, home, private, monkeypatch, owner, taken):
        """Whatever its mode; root is nobody else."""
        monkeypatch.setattr(os, "getuid", lambda: 7)
        real = os.fstat

        def fstat(number):
            return os.stat_result((*real(number)[:4], owner, *real(number)[5:]))

        monkeypatch.setattr(os, "fstat", fstat)
        if taken:
            assert trusted() == {private.public: "own"}
            return
        for read in (trusted, private_key):
            with pytest.raises(BundleError, match="another user owns it"):
                read()

    @pytest.mark.parametrize("line", ["ssh-rsa AAAA", "ed25519:AAAA", "ed25519:" + "A" * 44, "?"])
    def test_a_line_that_is_no_key_is_an_error(self, home, private, line):
        (home / "trusted-keys").write_text(f"# mine\n\n{line} somebody\n")
        with pytest.raises(BundleError, match="no public key"):
            trusted()

    def test_another_list_may_be_named(self, monkeypatch, tmp_path, private):
        monkeypatch.setenv("PLANNER_TRUSTED_KEYS", str(tmp_path / "keys"))
        assert trusted() == {}
        trust(private.public, "the build server")
        assert trusted() == {private.public: "the build server"}
        assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
