"""Devices over Flower: its own SuperLink and SuperNodes on loopback, in an environment with the runtime and Flower."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from prgec.core.data.dataset import Dataset
from prgec.core.formats.adapter import load_adapter, masters_sha256
from prgec.core.formats.journal import read_journal
from prgec.errors import UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.flower.joining import Superlink
from prgec.runtime.runs.resume import rebuild
from tests.processes import wait_until
from tests.remote.running import make_certificate

ROOT = Path(__file__).resolve().parents[2]
DEVICES, ROUNDS = 3, 4
# Flower asks its server for work every few seconds.
SECONDS = 240.0


@pytest.fixture(scope="module")
def prgec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment as a device has it: the runtime and the extra, from an index of packages."""
    folder, wheels = tmp_path_factory.mktemp("device"), tmp_path_factory.mktemp("wheels")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build, "-C", f"build-dir={wheels / 'build'}"], check=True)
    venv.create(folder, with_pip=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", f"prgec[flower] @ {wheel.as_uri()}"], check=True)
    return folder / "bin" / "prgec"


class Fleet:
    """Processes of one test; all of them end with it."""

    def __init__(self, prgec: Path, folder: Path) -> None:
        self._prgec, self._folder = prgec, folder
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start `prgec federate`."""
        command = [str(self._prgec), "federate", *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._running.append(process)
        return process

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def fleet(prgec: Path, tmp_path: Path) -> Iterator[Fleet]:
    running = Fleet(prgec, tmp_path)
    yield running
    running.end()


def _write_rows(data: Dataset, folder: Path) -> list[Path]:
    paths = [folder / f"rows-{number}.jsonl" for number in range(DEVICES)]
    for number, path in enumerate(paths):
        rows = [{"prompt": e.prompt, "completion": e.completion} for e in data.examples[number::DEVICES]]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


def _states(path: Path, folders: Sequence[Path]) -> set[str]:
    states = set()
    for folder in folders:
        program = open_pte(path)
        load_adapter(folder, program)
        states.add(masters_sha256(program))
    return states


def _num_rounds(out: Path) -> int:
    path = out / "rounds.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def _port(number: int) -> int:
    return 20000 + (os.getpid() * 7 + number) % 20000


@pytest.mark.slow
def test_three_nodes_end_with_the_same_state_whoever_is_killed(
    fleet: Fleet, tiny_pte: Path, train_data: Dataset, tmp_path: Path
) -> None:
    port, out = _port(0), tmp_path / "server"
    options = ("--rounds", ROUNDS, "--devices", DEVICES, "--min-devices", 2, "--local-steps", 20, "--timeout", 60)
    serve = ("serve", tiny_pte, *options, "--out", out, "--port", port)

    def join(number: int, rows: Path) -> subprocess.Popen[str]:
        name = f"node {number}"
        address = f"127.0.0.1:{port}"
        return fleet.start("join", tiny_pte, "--data", rows, "--name", name, "--out", name, "--server", address)

    paths = _write_rows(train_data, tmp_path)
    server = fleet.start(*serve)
    nodes = [join(number, rows) for number, rows in enumerate(paths)]
    wait_until(lambda: _num_rounds(out) >= 2, SECONDS)
    # A device dies with its process, and comes back.
    nodes[0].send_signal(signal.SIGKILL)
    nodes[0] = join(0, paths[0])
    wait_until(lambda: _num_rounds(out) >= 3, SECONDS)
    server.send_signal(signal.SIGKILL)
    server.wait()
    # Flower notices within seconds that it has lost its parent.
    wait_until(lambda: (again := fleet.start(*serve)).poll() is None and not _refused(again), SECONDS)
    wait_until(lambda: (out / "result.json").exists(), SECONDS)
    assert json.loads((out / "result.json").read_bytes()) == {"error": "", "exit_code": 0}
    for node in nodes:
        text, _ = node.communicate(timeout=SECONDS)
        assert node.returncode == 0 and "the run is over" in text, text
    folders = [out, *(tmp_path / f"node {number}" for number in range(DEVICES))]
    (state,) = _states(tiny_pte, folders)
    replayed = open_pte(tiny_pte)
    rebuild(replayed, read_journal(out / "journal.bin"), None)
    assert masters_sha256(replayed) == state != masters_sha256(open_pte(tiny_pte))
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()[1:]]
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))


def _refused(process: subprocess.Popen[str]) -> bool:
    """Whether a server ends at once, because the one before still holds the folder or the port."""
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.slow
def test_programs_of_gradients_send_their_states(
    fleet: Fleet, gradient_pte: Path, train_data: Dataset, tmp_path: Path
) -> None:
    port = _port(1)
    options = ("--rounds", 2, "--devices", DEVICES, "--min-devices", DEVICES, "--local-steps", 5)
    server = fleet.start("serve", gradient_pte, *options, "--out", "server", "--port", port)
    address = ("--server", f"127.0.0.1:{port}")
    nodes = [
        fleet.start("join", gradient_pte, "--data", rows, "--name", f"n{n}", "--out", f"node {n}", *address)
        for n, rows in enumerate(_write_rows(train_data, tmp_path))
    ]
    for process in (server, *nodes):
        text, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, text
    assert len(_states(gradient_pte, [tmp_path / "server", *tmp_path.glob("node *")])) == 1


@pytest.mark.slow
def test_what_goes_wrong_at_the_other_end_is_one_line_here(
    fleet: Fleet, tiny_pte: Path, gradient_pte: Path, train_data: Dataset, tmp_path: Path
) -> None:
    port = _port(2)
    server = fleet.start(
        "serve", tiny_pte, "--min-devices", 1, "--devices", 1, "--out", "server", "--port", port, "--timeout", 30
    )
    rows = _write_rows(train_data, tmp_path)[0]
    # A program of another method than the server's.
    fleet.start("join", gradient_pte, "--data", rows, "--out", "node", "--server", f"127.0.0.1:{port}")
    text, _ = server.communicate(timeout=SECONDS)
    assert server.returncode == 4 and "steps can be shared by programs that measure losses" in text.splitlines()[-1], (
        text
    )
    taken = fleet.start("serve", tiny_pte, "--out", "other", "--rounds", 0)
    text, _ = taken.communicate(timeout=60)
    assert taken.returncode == 2 and text.startswith("error: --rounds is 0"), text


@pytest.mark.slow
def test_a_superlink_with_tls_and_keys_of_nodes(
    prgec: Path, fleet: Fleet, tiny_pte: Path, train_data: Dataset, tmp_path: Path
) -> None:
    """As docs/federation.md has it: the app of `federate app`, a SuperLink of one's own, and a stranger to it."""
    cert, key = make_certificate(tmp_path)
    address, home, tools = f"127.0.0.1:{_port(3)}", tmp_path / "home", prgec.parent
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "{address}"\nroot-certificates = "{cert}"\n'
    )
    own = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment = {**os.environ, **own, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    keys = [tmp_path / f"key-{number}" for number in range(3)]
    for path in keys:
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", path], check=True)
    tls = ("--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-ca-certfile", cert, "--enable-supernode-auth")
    command = [tools / "flower-superlink", *tls, "--port", address.rpartition(":")[2]]
    link = subprocess.Popen([*command, "--disable-runtime-dependency-installation"], env=environment)
    try:
        wait_until(lambda: _listens(address), SECONDS)
        for path in keys[:2]:
            register = [tools / "flwr", "supernode", "register", f"{path}.pub", "mine"]
            subprocess.run(register, env=environment, check=True)
        rows = _write_rows(train_data, tmp_path)
        reach = ("--server", address, "--ca", cert)
        nodes = [
            fleet.start(
                "join", tiny_pte, "--data", rows[n], "--out", f"node {n}", "--name", f"n{n}", *reach, "--key", each
            )
            for n, each in enumerate(keys)
        ]
        flags = ("--rounds", 2, "--devices", 3, "--min-devices", 2, "--local-steps", 5, "--out", tmp_path / "server")
        written = fleet.start("app", "app", tiny_pte, *flags)
        assert written.wait(60) == 0
        subprocess.run([tools / "flwr", "run", tmp_path / "app", "mine"], env=environment, check=True)
        for node in nodes[:2]:
            text, _ = node.communicate(timeout=SECONDS)
            assert node.returncode == 0, text
    finally:
        link.kill()
    lines = [json.loads(line) for line in (tmp_path / "server" / "rounds.jsonl").read_text().splitlines()[1:]]
    assert [sorted(line["devices"]) for line in lines] == [["n0", "n1"]] * 2
    assert not (tmp_path / "node 2" / "adapter.safetensors").exists()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as asking:
        return asking.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize(
    ("superlink", "message"),
    [
        (Superlink(address="example.org:9092"), "needs --ca.*ssh -N -L 9092:127.0.0.1:9092 example.org"),
        (Superlink(address="localhost"), "expected HOST:PORT"),
        (Superlink(address="localhost:0"), "expected HOST:PORT"),
        (Superlink(address="localhost:1", key=Path("none.pem")), "no such file"),
    ],
)
def test_addresses_that_cannot_be(superlink: Superlink, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        superlink.check()
