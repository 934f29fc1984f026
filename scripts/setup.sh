# shellcheck shell=bash
# Sourced by the other scripts. Defines ROOT and
#
#   setup run|dev     makes the environment if it is not there yet; sets PYTHON and BIN
#
# "run" holds what the tool needs, "dev" what its tests and checks need besides.
# PLANNER_PYTHON=/path/to/python uses that interpreter as it is, with no network and no .venv.
# All messages go to stderr: stdout belongs to the command that is run.

ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
IMPORT_DIR=$ROOT/.build/import

say() { printf '%s\n' "planner setup: $*" >&2; }
die() { say "$*"; exit 1; }

# A folder in which the root goes by its import name: for mypy, and for PLANNER_PYTHON.
make_import_dir() {
    mkdir -p "$IMPORT_DIR"
    [[ -L $IMPORT_DIR/fusionplan ]] || ln -sfn ../.. "$IMPORT_DIR/fusionplan"
}

# Beside the link, the metadata by which torch and importlib find the entry points.
# Names what the interpreter lacks, and goes on: much works without the search, say.
make_metadata() {
    "$PYTHON" - "$ROOT/pyproject.toml" "$IMPORT_DIR" <<'PY'
import os, pathlib, re, sys, tomllib
from importlib import metadata

project = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["project"]
info = pathlib.Path(sys.argv[2]) / f"{project['name']}-{project['version']}.dist-info"
groups = {"console_scripts": project["scripts"], **project["entry-points"]}
lines = []
for group, points in groups.items():
    lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]
info.mkdir(exist_ok=True)
for name, text in (
    ("METADATA", f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"),
    ("entry_points.txt", "\n".join(lines)),
):
    part = info / f"{name}.{os.getpid()}"
    part.write_text(text)
    part.replace(info / name)

needed = (re.match(r"[\w.-]+", line)[0] for line in project["dependencies"])
present = {re.sub(r"[-_.]+", "-", dist.name).lower() for dist in metadata.distributions() if dist.name}
if missing := [name for name in needed if name not in present]:
    print(f"planner setup: {sys.executable} lacks {', '.join(missing)}", file=sys.stderr)
PY
}

is_python_311() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

has_compiler_profile() {
    "$1" -c 'import sys, sysconfig
sys.exit("--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""))'
}

# Can it make an environment, and has it the headers for what Triton compiles?
is_whole() {
    "$1" -c 'import ensurepip, venv, pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())' 2>/dev/null
}

# The first; or, where that was built without the compiler's profile (pyenv's are), the system's of
# the same version: Debian's takes a tenth less time for the tests.
find_python() {
    local name first system
    for name in python3 python3.13 python3.12 python3.11; do
        first=$(command -v "$name") && is_python_311 "$first" || continue
        system=/usr/bin/$("$first" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
        if has_compiler_profile "$first" || ! is_whole "$system"; then system=$first; fi
        printf '%s\n' "$system"
        return
    done
    die "needs Python 3.11 or later; found none among python3, python3.13, python3.12, python3.11"
}

# What an installation depends on. The path too: an environment cannot be moved.
fingerprint() {
    { cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt"; printf '%s' "$ROOT"; } | sha256sum | cut -d' ' -f1
}

is_installed() { # level fingerprint
    local stamp
    [[ -x $BIN/python ]] || return 1
    for stamp in "$ROOT/.venv/.stamp-$1" "$ROOT/.venv/.stamp-dev"; do
        [[ -f $stamp && $(<"$stamp") == "$2" ]] && return
    done
    return 1
}

install() { # level fingerprint
    local target=$ROOT base
    [[ $1 == dev ]] && target=$ROOT'[dev]'
    if ! { is_python_311 "$PYTHON" && "$PYTHON" -m pip --version >/dev/null 2>&1; }; then
        base=$(find_python) || return
        say "making .venv with $base"
        "$base" -m venv --clear "$ROOT/.venv" >&2 ||
            { say "could not make .venv (on Debian and Ubuntu: apt install python3-venv)"; return 1; }
    fi
    say "installing packages into .venv (once; torch is large)"
    local pip=("$PYTHON" -m pip --disable-pip-version-check --no-input install --quiet
        --no-compile --constraint "$ROOT/constraints.txt")
    # Modules are compiled when they are first imported: most of what is installed never is.
    # setuptools first and no isolated build: pip before 25.3 and after differ in how constraints
    # reach an isolated build, and this way the build needs no download of its own.
    "${pip[@]}" setuptools >&2 &&
        "${pip[@]}" --no-build-isolation --editable "$target" >&2 ||
        { say "installation failed; see pip's message above"; return 1; }
    # pip's editable install finds the package by a hook at import time, into which type checkers do
    # not look; they do read path files.
    printf '%s\n' "$IMPORT_DIR" >"$("$PYTHON" -c 'import sysconfig
print(sysconfig.get_path("purelib"))')/fusionplan.pth"
    # What the command imports for a look at the store is compiled now: its first call should not
    # wait for it, and where PYTHONDONTWRITEBYTECODE is set every call would.
    env -u PYTHONDONTWRITEBYTECODE "$BIN/planner" doctor --quick --store "$ROOT/.build/none.db" \
        </dev/null >/dev/null 2>&1 || true
    printf '%s\n' "$2" >"$ROOT/.venv/.stamp-$1"
}

setup() { # run|dev
    make_import_dir
    if [[ -n ${PLANNER_PYTHON:-} ]]; then
        PYTHON=$(command -v "$PLANNER_PYTHON") || die "PLANNER_PYTHON=$PLANNER_PYTHON: no such program"
        [[ $PYTHON == /* ]] || PYTHON=$PWD/$PYTHON
        is_python_311 "$PYTHON" || die "PLANNER_PYTHON=$PLANNER_PYTHON is not Python 3.11 or later"
        BIN=$(dirname "$PYTHON")
        make_metadata
        export PYTHONPATH=$IMPORT_DIR${PYTHONPATH:+:$PYTHONPATH}
        return
    fi
    BIN=$ROOT/.venv/bin
    PYTHON=$BIN/python
    local wanted
    wanted=$(fingerprint)
    is_installed "$1" "$wanted" && return
    # One set-up at a time: the others wait here, and then find the stamp.
    command -v flock >/dev/null || die "needs the program flock (package util-linux)"
    (
        flock 9
        is_installed "$1" "$wanted" || install "$1" "$wanted" 9>&-
    ) 9>"$ROOT/.build/setup.lock" </dev/null || exit 1
}
