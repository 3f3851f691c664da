"""`prge_chat` answers as the Python driver, token for token, and refuses in one line anything but a prompt."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import load_model
from prgec.core.contract.names import EXTEND_CHUNK
from prgec.core.formats.adapter import save_adapter
from prgec.errors import DataError, ProgramError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.reader import Answer, Reader
from prgec.runtime.training.sampling import Sampler, Sampling

CONTEXT = 160
NO_END = ("--end", 4000000000)
LINE = "1 2 3\n"


@pytest.fixture(scope="module")
def path(program: Callable[[str], Path]) -> Path:
    return program("talking")


@pytest.fixture(scope="module")
def chat(executable: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(program: Path, said: str, *flags: object) -> subprocess.CompletedProcess[str]:
        command = [executable.with_name("prge_chat"), program, *map(str, flags)]
        return subprocess.run(command, input=said, capture_output=True, text=True, check=False)

    return run


Chat = Callable[..., subprocess.CompletedProcess[str]]


def _prompts(program: PteProgram) -> list[list[int]]:
    """A conversation that goes on, goes back and begins again, and texts of more than one call."""
    ids = np.random.default_rng(0).integers(0, program.manifest.vocab_size, CONTEXT).tolist()
    return [ids[:5], ids[:30], ids[:12] + ids[:5], ids[:1], ids[: EXTEND_CHUNK + 9], ids[3 : EXTEND_CHUNK + 5]]


def _lines(texts: Sequence[Sequence[int]]) -> str:
    return "".join(" ".join(map(str, ids)) + "\n" for ids in texts)


def _said(program: PteProgram, sampling: Sampling, *, ends: Sequence[int] = ()) -> str:
    """Answers of the Python driver, one prompt after the other."""
    reader, sampler, answers = Reader(program), Sampler(sampling), []
    for prompt in _prompts(program):
        answer = Answer(reader, prompt, sampler, lambda ids: "", ends=ends, max_tokens=12)
        assert list(answer) == []
        answers.append(answer.ids)
    return _lines(answers)


def _trained(program: PteProgram, path: Path) -> Path:
    """An adapter that matters, which the program has then."""
    random = np.random.default_rng(5)
    program.write_state(
        {name: random.normal(0, 0.5, b.shape).astype(np.float32) for name, b in program.read_state().items()}
    )
    save_adapter(path, program)
    return path


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, 40, 0.8, 2**40 + 3), Sampling(2.0)], ids=str)
def test_tokens_are_those_of_python(path: Path, chat: Chat, sampling: Sampling, tmp_path: Path) -> None:
    program = open_pte(path)
    said = _lines(_prompts(program))
    flags = [*NO_END, "--max-tokens", 12, "--temperature", sampling.temperature, "--top-k", sampling.top_k]
    flags += ["--top-p", sampling.top_p, "--seed", sampling.seed]
    base = chat(path, said, *flags)
    assert (base.returncode, base.stdout, base.stderr) == (0, _said(program, sampling), "")
    adapter = _trained(program, tmp_path / "adapter.safetensors")
    trained = chat(path, said, *flags, "--adapter", adapter)
    assert (trained.returncode, trained.stdout, trained.stderr) == (0, _said(program, sampling), "")
    assert trained.stdout != base.stdout
    assert len(set(trained.stdout.split())) > 10, "texts that repeat one token show nothing"


def test_room_grows_with_a_text(path: Path, checkpoint: Path) -> None:
    """Parts that fill a room to the last place, go over its end, and come after it was full."""
    parts = (1, 62, 1, 1, 60, 5, 29)
    ids = np.random.default_rng(2).integers(0, open_pte(path).manifest.vocab_size, sum(parts))
    with torch.no_grad():
        expected_TV = load_model(find_checkpoint(str(checkpoint)))(input_ids=torch.from_numpy(ids)[None]).logits[0]
    program = open_pte(path)
    for _ in range(2):
        program.cache.clear()
        for start, end in itertools.pairwise(np.cumsum((0, *parts)).tolist()):
            logits_V = program.cache.extend(ids[start:end], start)
            np.testing.assert_allclose(logits_V, expected_TV[end - 1], rtol=1e-4, atol=1e-4)
    with pytest.raises(ProgramError, match="failed to run"):
        program.cache.extend(ids[:2], CONTEXT - 1)


def test_answers_end_where_the_tokenizer_says(path: Path, chat: Chat, tmp_path: Path) -> None:
    """Or the user, and what ends an answer is not part of it."""
    program = open_pte(path)
    sampling = Sampling(8.0, seed=1)
    flags = ("--temperature", 8, "--seed", 1, "--max-tokens", 12)
    whole = _said(program, sampling)
    eos = program.tokenizer.eos_id
    assert eos is not None
    assert chat(path, _lines(_prompts(program)), *flags).stdout == _said(program, sampling, ends=[eos])
    ends = [int(token) for token in whole.split()[3:20:8]]
    told = [each for token in ends for each in ("--end", token)]
    expected = _said(program, sampling, ends=ends)
    assert chat(path, _lines(_prompts(program)), *flags, *told).stdout == expected != whole


def test_a_full_cache_ends_an_answer_and_the_answer_so_far_is_kept(path: Path, chat: Chat) -> None:
    prompt = " ".join(["7"] * (CONTEXT - 4)) + "\n"
    done = chat(path, prompt + LINE, *NO_END, "--max-tokens", 9)
    assert done.returncode == 0
    assert done.stderr == f"the program's cache of {CONTEXT} tokens is full: the answer ends here\n"
    first, second = done.stdout.splitlines()
    # The last token needs no place of its own.
    assert (len(first.split()), len(second.split())) == (5, 9)


BAD_PROMPTS = {
    "beyond the vocabulary": ("4 999999999", "token 999999999 is not one of the program's"),
    "beyond any": ("4 99999999999999999999", "a prompt is token ids with spaces between"),
    "negative": ("4 -1", "a prompt is token ids with spaces between"),
    "text": ("the film was great", "a prompt is token ids with spaces between"),
    "stuck together": ("4,5", "a prompt is token ids with spaces between"),
    "zero byte": ("4 \0 5", "a prompt is token ids with spaces between"),
    "empty": ("", "there is no text to continue"),
    "too long": ("7 " * (CONTEXT + 1), f"the text has {CONTEXT + 1} tokens, and the program's cache holds {CONTEXT}"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_what_is_no_prompt(path: Path, chat: Chat, name: str) -> None:
    prompt, message = BAD_PROMPTS[name]
    done = chat(path, f"{LINE}{prompt}\n{LINE}", *NO_END, "--max-tokens", 3)
    assert done.returncode == DataError.exit_code
    assert done.stderr.startswith(f"error: line 2: {message}") and done.stderr.count("\n") == 1
    assert re.fullmatch(r"\d+ \d+ \d+\n", done.stdout), "what was said is kept"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--temperature", "-1"), "the temperature is -1; expected a finite number, 0 or more"),
        (("--temperature", "nan"), "the temperature is nan; expected a finite number, 0 or more"),
        (("--top-p", "0"), "top-p is 0; expected more than 0, at most 1"),
        (("--top-k", "-1"), "wrong usage: --top-k"),
        (("--max-tokens", "0"), "wrong usage: --max-tokens"),
        (("--end", "x"), "wrong usage: --end"),
        (("--tune", "1"), "wrong usage: --tune"),
    ],
)
def test_bad_flags(path: Path, chat: Chat, flags: tuple[str, ...], message: str) -> None:
    done = chat(path, LINE, *flags)
    assert (done.returncode, done.stdout) == (UsageError.exit_code, "")
    assert done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1


def test_adapters_that_do_not_belong(path: Path, chat: Chat, tmp_path: Path) -> None:
    adapter = _trained(open_pte(path), tmp_path / "adapter.safetensors")
    data = adapter.read_bytes()
    place = data.index(b'"base_sha256":"') + 15
    adapter.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    done = chat(path, LINE, "--adapter", adapter)
    assert (done.returncode, done.stdout) == (DataError.exit_code, "")
    message = "the adapter does not fit the program: its base_sha256 is another"
    assert done.stderr == f"error: {message} ({adapter})\n"


def test_a_program_without_a_cache(program: Callable[[str], Path], chat: Chat) -> None:
    done = chat(program("exact"), LINE)
    assert (done.returncode, done.stdout) == (ProgramError.exit_code, "")
    assert done.stderr.startswith("error: the program has no cache to continue with (") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("Hint: compile it with --generate --context C\n")
