"""`prgec side audit`: what shards give away, tried on the user's own."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from prgec.cli.interrupt import end_on_terminate
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.side_emit import KEY_HELP
from prgec.cli.task_option import TASK
from prgec.cli.verify_option import NO_VERIFY
from prgec.core.data.tasks import AUTO_TASK, TASK_HELP
from prgec.errors import DataError

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("shards", type=FILE)
@click.option("--program", type=FILE, required=True, help="The backbone they are of.")
@click.option("--data", type=FILE, required=True, help="The labelled rows they are of.")
@click.option("--task", type=TASK, default=AUTO_TASK, show_default=True, help=TASK_HELP)
@click.option("--known", type=int, default=20, show_default=True, metavar="K", help="Labels an attacker has already.")
@click.option("--key", type=FILE, help=KEY_HELP)
@NO_VERIFY
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def audit(
    shards: Path, program: Path, data: Path, task: str, known: int, key: Path | None, no_verify: bool, as_json: bool
) -> int:
    """Try to recover the labels of SHARDS, a folder that prgec side emit wrote, and say how many it gets."""
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.first_tokens import encode_dataset
    from prgec.serve.side.answers import open_assisted
    from prgec.serve.side.audit import attacks
    from prgec.serve.side.cache import read_cache
    from prgec.serve.side.row_ids import default_key_path, load_key, row_ids

    dataset, cache = load_dataset(data, task), read_cache(shards)
    assisted = open_assisted(program, None, None, verify=not no_verify)
    encoded = encode_dataset(dataset, assisted.program.tokenizer, assisted.program.manifest)
    if encoded.scores:
        raise DataError("attacks guess answers to choose from; these rows have scores", where=data)
    place = {row.tobytes(): number for number, row in enumerate(cache.ids)}
    ids = row_ids(encoded.rows, load_key(key or default_key_path()))
    if not set(ids) <= place.keys():
        raise DataError("the shards are not of these rows, or of another key", where=shards)
    with end_on_terminate(), RunDisplay(steps=0) as display:
        found = assisted.scores(encoded, display.on_eval_batch)
    order = np.array([place[row] for row in ids], dtype=np.int64)
    tried = attacks(cache.dy[order][:, 0], cache.values(order)[:, -1, 0], found[0], encoded.answers, known)
    if as_json:
        print_json({"attacks": [vars(each) for each in tried]})
    else:
        print_lines(*(f"{each.name:<12} {each.recovered:6.1%}  knows {each.knows}" for each in tried))
    return 0
