"""Both ends of the line: TLS, kills of either side, and a network that is the one a file would have given."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.errors import DataError, PrgecError, UsageError
from prgec.serve.remote.client import forget, job_of, pull, push
from prgec.serve.remote.connection import Server
from prgec.serve.remote.serve import ServeOptions
from prgec.serve.remote.tokens import add_device
from prgec.serve.remote.upload import Sender
from prgec.serve.side.cache import read_cache
from prgec.serve.side.fit import fit
from prgec.serve.side.fit_options import FitOptions
from tests.remote.running import RunningServer, make_certificate
from tests.side.test_fit import write_shards

pytest.importorskip("starlette")
OPTIONS = {"rank": 4, "epochs": 12, "lr": 3e-3, "seed": 5}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def acts(tmp_path: Path) -> Path:
    folder = write_shards(tmp_path / "acts", num_rows=120, cuts=(30, 60, 90))
    (folder / "local.json").write_text('{"choices": ["secret word"]}')
    return folder


def _expected(acts: Path, tmp_path: Path) -> bytes:
    fit(read_cache(acts), tmp_path / "expected", FitOptions(**OPTIONS))  # type: ignore[arg-type]
    return (tmp_path / "expected").read_bytes()


@pytest.mark.slow
def test_a_server_gives_what_a_file_gives_bit_for_bit(store: Path, acts: Path, tmp_path: Path) -> None:
    token = add_device(store, "phone")
    with RunningServer(store) as running:
        server = Server(running.url, token)
        done = push(server, acts, OPTIONS)
        assert (done.num_shards, done.num_sent) == (4, 4)
        assert push(server, acts, OPTIONS).num_sent == 0
        seen: list[dict[str, object]] = []
        assert pull(server, acts, tmp_path / "side", on_status=seen.append)
        assert (tmp_path / "side").read_bytes() == _expected(acts, tmp_path)
        assert len(seen[-1]["epochs"]) == 12  # type: ignore[arg-type]
        kept = b"".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
        assert b"secret word" not in kept and token.encode() not in kept
        forget(server, acts)
        assert not list(store.rglob("shard-*")) and not (acts / "job.json").exists()
        with pytest.raises(DataError, match="was not pushed"):
            pull(server, acts, tmp_path / "side")


@pytest.mark.slow
def test_a_server_killed_while_it_learns_goes_on(store: Path, acts: Path, tmp_path: Path) -> None:
    """Three power cuts; what is on the disk is always whole, and the end is the same, bit for bit."""
    token = add_device(store, "phone")
    running = RunningServer(store)
    push(Server(running.url, token), acts, OPTIONS)
    chance = random.Random(7)
    for _ in range(3):
        time.sleep(chance.uniform(0.0, 4.0))
        running.kill()
        running = RunningServer(store)
    with running:
        assert pull(Server(running.url, token), acts, tmp_path / "side")
    assert (tmp_path / "side").read_bytes() == _expected(acts, tmp_path)


@pytest.mark.slow
def test_a_device_killed_while_it_sends_goes_on(store: Path, acts: Path, tmp_path: Path) -> None:
    token = add_device(store, "phone")
    with RunningServer(store) as running:
        (tmp_path / "token").write_text(token)
        arguments = [str(acts), "--server", running.url, "--token-file", str(tmp_path / "token")]
        command = [sys.executable, "-m", "prgec", "side", "push", *arguments, "--no-train"]
        chance = random.Random(3)
        for _ in range(3):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.1, 1.0))
            process.kill()
            process.wait()
        assert main(["side", "push", *arguments, "--epochs", "12", "--rank", "4", "--lr", "0.003", "--seed", "5"]) == 0
        assert main(["side", "pull", *arguments, "-o", str(tmp_path / "side")]) == 0
        assert len(list(store.glob("jobs/*/*/job.json"))) == 1
    assert (tmp_path / "side").read_bytes() == _expected(acts, tmp_path)


def test_tls(store: Path, acts: Path, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    token = add_device(store, "phone")
    with RunningServer(store, "--tls-cert", str(cert), "--tls-key", str(key)) as running:
        assert running.url.startswith("https://127.0.0.1:")
        assert push(Server(running.url, token, cert), acts, None).num_sent == 4
        with pytest.raises(PrgecError, match="the server's certificate is not trusted"):
            push(Server(running.url, token), acts, None)
        with pytest.raises(PrgecError, match="the server refuses: the token is not one of this server's"):
            push(Server(running.url, "x" * 43, cert), acts, None)


def test_shards_are_sent_while_others_are_made(store: Path, acts: Path) -> None:
    token = add_device(store, "phone")
    paths = sorted(acts.glob("shard-*"))
    with RunningServer(store) as running:
        server = Server(running.url, token)
        with Sender(server, acts) as sender:
            for path in paths:
                sender.put(path)
            assert sender.num_bytes == sum(path.stat().st_size for path in paths)
        assert push(server, acts, None).num_sent == 0
        paths[0].write_bytes(b"no shard")
        with pytest.raises(DataError, match="shard-00000"), Sender(server, acts) as sender:
            sender.put(paths[0])
            assert sender.num_bytes


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://example.org:80", "reached by https"),
        ("ftp://127.0.0.1", "is not an address"),
        ("127.0.0.1:80", "is not an address"),
        ("https://a/b", "is not an address"),
    ],
)
def test_tokens_are_not_sent_in_the_clear(url: str, message: str, acts: Path) -> None:
    with pytest.raises(UsageError, match=message):
        push(Server(url, "token"), acts, None)
    assert not (acts / "job.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": "0.0.0.0"}, "without TLS would send tokens"),
        ({"host": "::"}, "without TLS would send tokens"),
        ({"cert": Path("x")}, "need each other"),
        ({"cert": Path("none.pem"), "key": Path("none.pem")}, "there is no such file"),
        ({"port": 70000}, "--port is 70000"),
    ],
)
def test_where_a_server_does_not_listen(changes: dict[str, object], message: str, store: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ServeOptions(store=store, **changes).check()  # type: ignore[arg-type]


def test_a_server_that_is_not_there(acts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prgec.serve.remote.connection.time.sleep", lambda seconds: None)
    with pytest.raises(PrgecError, match="cannot be reached: .*refused.*Hint: the same command goes on"):
        push(Server("http://127.0.0.1:9", "token"), acts, None)
    job = job_of(acts, make=False)
    assert json.loads((acts / "job.json").read_text()) == {"id": job}


def test_a_damaged_shard_is_not_sent(store: Path, acts: Path) -> None:
    token = add_device(store, "phone")
    path = acts / "shard-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with RunningServer(store) as running:
        with pytest.raises(DataError, match="shard-00002"):
            push(Server(running.url, token), acts, OPTIONS)
        assert push_state(running, token, acts) == "open"


def push_state(running: RunningServer, token: str, acts: Path) -> str:
    return str(running.request("GET", f"/v1/jobs/{job_of(acts, make=False)}", token)[1]["state"])


@pytest.mark.slow
def test_what_cannot_be_learnt_is_reported(store: Path, acts: Path, tmp_path: Path) -> None:
    """A rate that sends the loss to infinity."""
    token = add_device(store, "phone")
    with RunningServer(store) as running:
        server = Server(running.url, token)
        push(server, acts, {**OPTIONS, "lr": 1e30})
        with pytest.raises(PrgecError, match="could not learn a network: the loss of epoch 1 is not finite"):
            pull(server, acts, tmp_path / "side")
        assert push(server, acts, OPTIONS).state in ("queued", "training")
        assert pull(server, acts, tmp_path / "side")
