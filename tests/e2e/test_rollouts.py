"""A program that continues several texts at once writes what it writes one by one, and what transformers writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.names import DECODE_METHOD
from prgec.errors import ProgramError
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.training.sampling import Sampler, Sampling
from prgec.runtime.training.writing import AnswerWriter, OpenText
from tests.architectures import architecture
from tests.shared import Shared
from tests.talking import CONTEXT, NAME, chat_options, give_state, text_of, transformers_greedy, write_checkpoint

ROWS = 3
LENGTHS = (5, 20, 9, 9, 27, 14, 5, 33)
TOKENS = 7


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("chat", write_checkpoint)


@pytest.fixture(scope="module")
def path(shared: Shared, checkpoint: Path) -> Path:
    return shared.program(chat_options(checkpoint, rollouts=ROWS))


def _written(
    program: Any, order: Sequence[int], *, temperature: float = 0.0, ends: Sequence[int] = (), most: int = TOKENS
) -> dict[int, list[int]]:
    """Answers to texts of these lengths, each drawn with a seed of its own."""
    texts = {each: OpenText(text_of(LENGTHS[each]), Sampler(Sampling(temperature, seed=each))) for each in order}
    writer = AnswerWriter(program, max_tokens=most, has_ended=lambda ids: ids[-1] in ends)
    ended: list[int] = []
    writer.write(list(texts.values()), lambda done, total: ended.append(done))
    assert sorted(ended) == ended and ended[-1] == len(texts)
    return {each: text.ids for each, text in texts.items()}


def test_greedy_equals_transformers(path: Path) -> None:
    model, found = architecture(NAME).build(), _written(open_pte(path), range(len(LENGTHS)))
    for each, ids in found.items():
        assert ids == transformers_greedy(model, text_of(LENGTHS[each]), TOKENS)


def test_neighbours_make_no_difference(path: Path, shared: Shared, checkpoint: Path) -> None:
    """An answer is the same alone, beside others, in another order and row, and where nothing ends at the same time."""
    ends = tuple(range(3, 64, 5))
    drawn: dict[str, Any] = {"temperature": 1.0, "ends": ends, "most": 12}
    program, single = open_pte(path), open_pte(shared.program(chat_options(checkpoint)))
    assert single.manifest.rollouts == 0
    for each in (program, single):
        give_state(each)
    found = _written(program, range(len(LENGTHS)), **drawn)
    assert len({len(ids) for ids in found.values()}) > 2, "answers that end together show nothing"
    assert _written(program, range(len(LENGTHS) - 1, -1, -1), **drawn) == found
    assert {each: _written(program, [each], **drawn)[each] for each in found} == found
    assert _written(single, range(len(LENGTHS)), **drawn) == found


def test_a_full_cache_ends_an_answer(path: Path) -> None:
    found = _written(open_pte(path), (4, 7, 1), most=99)
    assert {each: LENGTHS[each] + len(ids) for each, ids in found.items()} == dict.fromkeys((4, 7, 1), CONTEXT + 1)


def test_what_is_no_number_does_not_stay(path: Path) -> None:
    program = open_pte(path)
    expected, trained = _written(program, range(4)), program.read_state()
    program.write_state({name: np.full_like(b, np.nan) for name, b in trained.items()})
    with pytest.raises(ProgramError, match="^the program computes values that are not finite"):
        _written(program, range(4))
    program.write_state(trained)
    assert _written(program, range(4)) == expected


def test_positions_are_checked(path: Path) -> None:
    program = open_pte(path)
    program.cache.extend(np.array([5, 6], dtype=np.int64), 0)
    for row, count in ((ROWS, 1), (-1, 1), (0, CONTEXT + 1)):
        with pytest.raises(ProgramError):
            program.cache.fork(row, count)
    tokens = np.zeros(ROWS, dtype=np.int64)
    for start in (-1, CONTEXT):
        with pytest.raises(ProgramError):
            program.cache.decode(tokens, np.array([0, start, 0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"quantize_cache": 8, "quantize": "8da8w"}, {"method": "prge", "q": 2, "state": "dual"}]
)
def test_torch_writes_the_same(changes: dict[str, Any], shared: Shared, checkpoint: Path) -> None:
    options = chat_options(checkpoint, rollouts=ROWS, **changes)
    program, oracle = open_pte(shared.program(options)), TorchProgram.build(options)
    for each in (program, oracle):
        if each.manifest.state != "dual":
            give_state(each)
    assert _written(program, range(4)) == _written(oracle, range(4))


def test_one_delegate_and_the_same_weights(path: Path, shared: Shared, checkpoint: Path) -> None:
    methods = inspect_program(path).pte.methods
    assert len(methods[DECODE_METHOD].delegates) == 1
    single = shared.program(chat_options(checkpoint))
    weights = sum(each.stat().st_size for each in checkpoint.glob("*.safetensors"))
    assert path.stat().st_size - single.stat().st_size < weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rollouts", "4"), "--rollouts is for programs with a cache. Hint: add --generate --context C"),
        (("--generate", "--context", "32", "--rollouts", "1"), "--rollouts is 1; expected 2 to 256, or 0"),
        (("--generate", "--context", "32", "--rollouts", "-4"), "--rollouts is -4; expected 2 to 256, or 0"),
    ],
)
def test_refused(options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "demo", *options, "-o", "never.pte"]) == 2
    assert message in capsys.readouterr().err
