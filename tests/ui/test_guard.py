"""Nobody but who has the address gets in: tokens, hosts, origins, paths and bodies as an attacker spells them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from prgec.cli.main import main
from tests.ui.running import RunningUi, error_of
from tests.ui.synthetic import write_run

pytest.importorskip("starlette", reason="starlette is not installed")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ui") / "runs"
    write_run(root / "one")
    (root.parent / "secret.txt").write_text("secret")
    return root


@pytest.fixture(scope="module")
def ui(root: Path) -> Iterator[RunningUi]:
    with RunningUi(root) as running:
        yield running


def test_the_address_lets_in_once_and_the_cookie_from_then_on(ui: RunningUi) -> None:
    status, _, headers = ui.request("GET", f"/?token={ui.token}", Cookie=None)
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert ui.request("GET", "/", Cookie=cookie.split(";")[0])[0] == 200


def test_the_way_in_leads_nowhere_else(ui: RunningUi) -> None:
    status, _, headers = ui.request("GET", f"//evil.example/?token={ui.token}", Cookie=None)
    assert status == 303 and headers["location"].startswith("/evil.example/")


@pytest.mark.parametrize("path", ["/", "/ui.css", "/ui.js", "/live", "/demo", "/runs/new", "/programs", "/nothing"])
@pytest.mark.parametrize("cookie", [None, "prgec=1", "wrong", "other"])
def test_nothing_without_the_token(ui: RunningUi, path: str, cookie: str | None) -> None:
    spelled = {"wrong": f"prgec-{ui.port}=wrong", "other": f"prgec-1={ui.token}"}.get(cookie or "", cookie)
    status, text, _ = ui.request("GET", path, Cookie=spelled)
    assert (status, "token and all" in text) == (401, True)


def test_no_form_without_the_token(ui: RunningUi) -> None:
    for path in ("/runs/new", "/demo/compile", f"/runs/{ui.id_of('one')}/stop"):
        assert ui.request("POST", path, b"do=start", Cookie=None)[0] == 401
        assert ui.request("POST", f"{path}?token={ui.token}", b"do=start", Cookie=None)[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", None])
def test_other_hosts_are_refused(ui: RunningUi, host: str | None) -> None:
    """A name that an attacker lets point here is another host."""
    spelled = None if host is None else host.format(port=ui.port)
    assert ui.request("GET", "/", Host=spelled)[0] in (400, 421)
    assert ui.request("GET", f"/?token={ui.token}", Host=spelled, Cookie=None)[0] in (400, 421)
    assert ui.request("GET", "/", Host=f"localhost:{ui.port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1", ""])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused(ui: RunningUi, origin: str, method: str) -> None:
    assert ui.request(method, "/demo/compile", b"", Origin=origin.format(port=ui.port))[0] == 403


def test_a_form_says_where_it_comes_from(ui: RunningUi) -> None:
    assert ui.request("POST", "/demo/compile", b"", Origin=None)[0] == 403
    assert ui.request("POST", "/demo/compile", b"", Sec_Fetch_Site="cross-site")[0] == 403
    assert ui.request("DELETE", "/demo", Origin=ui.origin)[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/runs/../../secret.txt",
        "/runs/..%2f..%2fsecret.txt",
        "/runs/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/runs/one",
        "/runs/0000000000000000",
        "/runs/..",
        "/programs/..%2fsecret.txt",
        "/programs/%00",
        "/jobs/..%2f..%2fsecret",
        "/../secret.txt",
        "/templates/base.html.jinja",
        "/static/../serve.py",
    ],
)
def test_ids_are_no_paths(ui: RunningUi, path: str) -> None:
    status, text, _ = ui.request("GET", path)
    assert status == 404 and "secret" not in text.replace("secret.txt", "")


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/b", "..", ".hidden", "a b", "x" * 65, "a\0b", "a\nb"])
def test_names_of_runs_are_no_paths(ui: RunningUi, root: Path, name: str) -> None:
    status, page, _ = ui.post("/runs/new", program="m.pte", data="x", name=name, do="start")
    assert status == 400 and "is not a name" in error_of(page)
    assert [path.name for path in root.iterdir()] == ["one"]


def test_graphs_are_those_of_the_list(ui: RunningUi, root: Path) -> None:
    program = root / "model.pte"
    program.write_bytes(b"no program")
    (root / "model.passes").mkdir()
    (root / "model.passes" / "01-a-pass.txt").write_text("graph text")
    name = next(part for part in ui.get("/programs").split('"') if part.startswith("/programs/") and "new" not in part)
    text = ui.get(f"{name}?left=../../../secret.txt&right=..%2F..%2F..%2Fsecret.txt")
    assert "graph text" in text and ">secret<" not in text
    program.unlink()


def test_bodies_are_limited(ui: RunningUi) -> None:
    assert ui.request("POST", "/runs/new", b"x=" + b"y" * (64 << 10))[0] == 413
    assert ui.request("POST", "/runs/new", None, Content_Length="99999999999999")[0] == 413
    assert ui.request("POST", "/runs/new", None, Content_Length="-1")[0] in (400, 411)
    assert ui.request("POST", "/runs/new", None, Content_Length="1e3")[0] in (400, 411)
    assert ui.request("POST", "/runs/new", b"0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked")[0] == 411


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{}", "application/json"),
        (b"--x\r\n", "multipart/form-data; boundary=x"),
        (b"a=1", ""),
        (b"\xff\xfe=1", "application/x-www-form-urlencoded"),
        (b"a=%ff", "application/x-www-form-urlencoded"),
        (b"a", "application/x-www-form-urlencoded"),
        (b"&".join(b"k%d=v" % n for n in range(300)), "application/x-www-form-urlencoded"),
    ],
)
def test_malformed_bodies_are_refused(ui: RunningUi, body: bytes, kind: str) -> None:
    status, page, _ = ui.request("POST", "/runs/new", body, Content_Type=kind)
    assert status in (400, 415) and error_of(page)


@pytest.mark.parametrize("body", [{"history": "["}, {"history": '[{"role": "system", "content": "x"}]'}, {"say": ""}])
def test_malformed_conversations_are_refused(ui: RunningUi, root: Path, body: dict[str, str]) -> None:
    (root / "chat.pte").write_bytes(b"no program")
    name = next(part for part in ui.get("/programs").split('"') if part.startswith("/programs/") and "new" not in part)
    status, page, _ = ui.post(f"{name}/try", do="chat", **{"say": "hello", **body})
    assert status == 400 and ("conversation cannot be read" in error_of(page) or "characters" in error_of(page))
    assert "there is no such task" in error_of(ui.post(f"{name}/try", do="predict", texts="a", task="x.toml")[1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"do": "good", "history": "["}, "the conversation cannot be read"),
        ({"do": "bad"}, "there is no answer yet"),
        ({"do": "good", "history": '[{"role": "user", "content": "x"}]'}, "there is no answer yet"),
        ({"do": "better", "history": '[{"role": "assistant", "content": "x"}]', "better": " "}, "a better answer"),
    ],
)
def test_malformed_feedback_is_refused(ui: RunningUi, root: Path, body: dict[str, str], message: str) -> None:
    (root / "chat.pte").write_bytes(b"no program")
    name = next(part for part in ui.get("/programs").split('"') if part.startswith("/programs/") and "new" not in part)
    status, page, _ = ui.post(f"{name}/try", **body)
    assert status == 400 and message in error_of(page)
    assert not list(root.glob(".prgec-ui/feedback-*"))


def test_garbage_is_no_end_of_it(ui: RunningUi) -> None:
    for data in (b"\0" * 100, b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * (1 << 17)):
        with socket.create_connection(("127.0.0.1", ui.port or 0), timeout=10) as line:
            line.sendall(data)
            line.settimeout(10)
            assert b" 200 " not in line.recv(1000)
    assert "one" in ui.get("/")


def test_pages_cannot_be_framed_or_scripted(ui: RunningUi) -> None:
    _, text, headers = ui.request("GET", "/")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "http://" not in text and "https://" not in text and "style=" not in text and "onclick" not in text


def test_names_are_text(root: Path, ui: RunningUi) -> None:
    evil = "<img src=x onerror=alert(1)>"
    write_run(root / evil, status=evil, manifest={"model": evil}, options={"steps": 40, "task": evil, "program": evil})
    for path in ("/", "/live", f"/compare?run={ui.id_of('one')}&run={ui.id_of('one')}", "/programs"):
        assert "<img" not in ui.request("GET", path)[1]
    for child in (root / evil).iterdir():
        child.unlink()
    (root / evil).rmdir()


def test_it_listens_on_the_loopback_alone(ui: RunningUi) -> None:
    with pytest.raises(OSError), socket.create_connection((_own_address(), ui.port or 0), timeout=2):
        pass


def _own_address() -> str:
    """An address of this machine that others see."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its own")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port is 70000"),
        (["--program", "gone.pte"], "there is no such program"),
        ([__file__], "RUNS is a file"),
    ],
)
def test_impossible_values_are_reported(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken_is_reported(ui: RunningUi, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(root), "--port", str(ui.port)]) == 2
    assert f"cannot listen on 127.0.0.1:{ui.port}: " in capsys.readouterr().err


def test_a_form_that_is_right_shows_its_file(ui: RunningUi) -> None:
    form = {"program": "/x/m.pte", "data": "/x/t.jsonl", "steps": "7", "lr": "0.5", "log_to": "tensorboard"}
    status, page, _ = ui.post("/runs/new", **form, do="show")
    assert status == 200, error_of(page)
    written = unescape(page.split("<pre")[1].split("</pre>")[0])
    assert 'program = "/x/m.pte"' in written and "steps = 7" in written and "lr-schedule" not in written


def test_half_requests_do_not_keep_others_out(ui: RunningUi) -> None:
    """64 connections are all that the server takes; whoever does not finish a request within seconds loses his."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", ui.port or 0))) for _ in range(64)]
        for half in sockets:
            half.sendall(b"GET / HTTP/1.1\r\nHost: ")
        for half in sockets:
            half.settimeout(30)
            assert half.recv(100) == b"", "hung up"
        assert ui.request("GET", "/")[0] == 200


def test_a_connection_serves_several_requests(ui: RunningUi) -> None:
    """Waiting for a request begins anew after each answer."""
    connection, same = http.client.HTTPConnection("127.0.0.1", ui.port, timeout=30), None
    for _ in range(3):
        connection.request("GET", "/programs", headers={"Cookie": ui.cookie})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        same = same or connection.sock
        assert connection.sock is same
        time.sleep(2)
    connection.close()
