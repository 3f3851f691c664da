"""Rewards run in a process of their own: what they return, and what they cannot do to a run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prgec.errors import DataError, NumericsError, PrgecError
from prgec.runtime.rewards.process import RewardLimits, RewardProcess
from prgec.runtime.rewards.source import parse_rewards

Make = Callable[..., RewardProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made = []

    def process(body: str, **limits: object) -> RewardProcess:
        path = tmp_path / "reward.py"
        path.write_text(body)
        made.append(RewardProcess(parse_rewards([str(path)]), RewardLimits(**limits)))  # type: ignore[arg-type]
        return made[-1]

    yield process
    for each in made:
        each.close()


def test_a_function_sees_prompt_answer_and_record(make: Make) -> None:
    process = make(
        "def reward(prompt, answer, record):\n"
        "    print('for people')\n"
        "    return len(prompt) + 10 * len(answer) + 100 * record['n']\n"
    )
    assert process.score("ab", "cde", {"n": 4}) == 432
    assert process.score([{"role": "user", "content": "x"}], "", {"n": 0}) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return float('nan')", "returned nan"),
        ("return float('-inf')", "returned -inf"),
        ("return 'much'", "raised ValueError"),
        ("return None", "raised TypeError"),
        ("raise KeyError('k')", "raised KeyError: 'k'"),
        ("import os; os._exit(3)", "ended with code 3"),
        ("import time; time.sleep(60)", "took more than 1 s"),
        ("return len(bytearray(3 << 30))", "ran out of memory"),
    ],
)
def test_a_reward_that_fails_is_one_line(make: Make, body: str, message: str) -> None:
    process = make(
        f"def reward(prompt, answer, record):\n    if answer == 'ok': return 1\n    {body}\n",
        seconds=1.0,
        memory=1 << 30,
    )
    start = time.monotonic()
    with pytest.raises(NumericsError, match=f"{message}.*--not-finite skip"):
        process.score("p", "a", {})
    assert time.monotonic() - start < 20
    # The next answer gets its reward, from a new process where the last one ended.
    assert process.score("p", "ok", {}) == 1.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = 1", "no function reward"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("def reward(:", "SyntaxError"),
    ],
)
def test_a_file_that_is_no_reward_is_refused_at_once(make: Make, body: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(body).start()


def test_nothing_is_reached_over_the_network(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        body = (
            "import socket\n"
            "def reward(prompt, answer, record):\n"
            f"    socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=5).close()\n"
            "    return 1\n"
        )
        assert make(body, network=True).score("p", "a", {}) == 1.0
        process = make(body)
        process.start()
        if "cannot keep a process from the network" in caplog.text:
            pytest.skip("this system has no namespaces for users")
        with pytest.raises(NumericsError, match="raised (ConnectionRefusedError|OSError)"):
            process.score("p", "a", {})


def test_what_a_reward_started_ends_with_it(make: Make, tmp_path: Path) -> None:
    process = make(
        "import subprocess, time\n"
        "def reward(prompt, answer, record):\n"
        f"    child = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(60)\n",
        seconds=2.0,
    )
    with pytest.raises(NumericsError, match="took more than 2 s"):
        process.score("p", "a", {})
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/status").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline, "the command goes on"
        time.sleep(0.05)


def test_a_command_judges_by_its_output_or_its_code() -> None:
    def score(command: str, answer: str) -> float:
        process = RewardProcess(parse_rewards([f"command:{command}"]), RewardLimits())
        try:
            return process.score("p", answer, {"k": 1})
        finally:
            process.close()

    assert score("grep -q warm", "a warm film") == 1.0
    assert score("grep -q warm", "a cold film") == 0.0
    assert score("wc -w | tr -d ' '", "x") == 7.0  # the words of the JSON object


def test_the_built_in_rewards(tmp_path: Path) -> None:
    def score(text: str, written: str, **record: object) -> float:
        process = RewardProcess(parse_rewards([text]), RewardLimits())
        try:
            return process.score("p", written, record)
        finally:
            process.close()

    assert score("contains", "It is the Seine, I think.", answer="Seine") == 1.0
    assert score("contains", "Insane", answer="sane") == 0.0
    assert score("equals", "The Seine.", completion=" seine") == 1.0
    assert score("equals:yes", "yes, sir") == 0.0
    assert score(r"regex:^\d+$", "42") == 1.0
    assert score("json:name,age", '{"name": 1}') == pytest.approx(2 / 3)
    assert score("json:name", '["name"]') == score("json", "{") == 0.0
    assert score("max_words:2", "one two three four") == 0.5
    assert score("max_words:2", "") == 0.0
    with pytest.raises(NumericsError, match="the record has no right answer"):
        score("equals", "x", question="?")
    several = tmp_path / "sum.toml"
    (tmp_path / "r.py").write_text("def reward(prompt, answer, record):\n    return 3\n")
    several.write_text(
        '[[reward]]\nname = "json"\nargument = ["a"]\nweight = 2\n'
        '[[reward]]\nfile = "r.py"\nweight = 0.5\n[[reward]]\ncommand = "false"\n'
    )
    assert score(str(several), '{"a": 1}') == 3.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kindness", "'kindness' is not a reward"),
        ("none.py", "the file of the reward does not exist"),
        ("command:", "has no command"),
        ("regex:(", "is not a pattern"),
        ("max_words:many", "is not a number of words"),
        ("max_words", "needs a number of words"),
    ],
)
def test_what_is_no_reward_is_refused(text: str, message: str) -> None:
    with pytest.raises(PrgecError, match=message):
        parse_rewards([text])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = 1", "has no rewards"),
        ('[[reward]]\nnme = "json"', "found 'nme'"),
        ('[[reward]]\nname = "json"\nfile = "r.py"', "exactly one of"),
        ('[[reward]]\nname = "json"\nweight = nan', "finite number"),
        ('[[reward]]\nname = "kind"', "there is no reward 'kind'"),
        ("[[reward", "cannot read the rewards"),
    ],
)
def test_a_damaged_file_of_rewards_is_refused(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "sum.toml"
    path.write_text(body)
    with pytest.raises(DataError, match=message):
        parse_rewards([str(path)])


def test_the_process_ends_with_the_run(make: Make) -> None:
    process = make("import os\ndef reward(prompt, answer, record):\n    return os.getpid()\n")
    pid = int(process.score("p", "a", {}))
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
