"""Read, encode and train on a million rows of chat, and say how long that takes and how much memory.

    python tools/many_rows.py smollm2 --rows 1000000 -o docs/reports/many-rows.md

`smollm2` is a checkpoint with a chat template (tools/make_smollm2.py). Rows are random words, 387 bytes of jsonl each.
Every measurement is in a process of its own. The tokenizer's own time is that of its library over the same texts, one
after the other in one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

WORDS = "time year people way day man thing woman life child world school state family student group country problem"

_ENCODE = """
import json, pickle, resource, sys, time
from pathlib import Path
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import RowSizes, encode_items
tokenizer = pickle.loads(Path(sys.argv[2]).read_bytes())
start = time.perf_counter()
dataset = load_dataset(Path(sys.argv[1]))
read = time.perf_counter()
rows = encode_items(dataset.examples, tokenizer, RowSizes(512, 512, 1 << 20))
done = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"read": read - start, "encode": done - read, "rows": len(rows), "peak_mb": peak >> 10}))
"""
_TOKENS = """
import json, pickle, sys, time
from pathlib import Path
tokenizer = pickle.loads(Path(sys.argv[2]).read_bytes())
template, seconds = tokenizer._template(), 0.0
for line in Path(sys.argv[1]).open():
    text = template.write(json.loads(line)["messages"], (), tokenizer._shared_length)[0].text
    start = time.perf_counter()
    tokenizer.backend.encode(text, add_special_tokens=False)
    seconds += time.perf_counter() - start
print(json.dumps({"seconds": seconds}))
"""
_SAVE = """
import pickle, sys
from pathlib import Path
from prgec.compiler.frontend.limits import read_limits
Path(sys.argv[2]).write_bytes(pickle.dumps(read_limits(sys.argv[1]).tokenizer))
"""


def main() -> None:
    """Parse the command line, measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint with a chat template")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("-o", "--out", type=Path, help="report to write [default: print it]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = _report(options.model, options.rows, Path(folder))
    print(report)
    if options.out is not None:
        options.out.write_text(report)


def _report(model: str, count: int, folder: Path) -> str:
    data, tokenizer = folder / "chats.jsonl", folder / "tokenizer"
    _write(data, count)
    _python(_SAVE, model, tokenizer)
    found = json.loads(_python(_ENCODE, data, tokenizer))
    seconds = json.loads(_python(_TOKENS, data, tokenizer))["seconds"]
    rest = found["read"] + found["encode"] - seconds
    command = f"python tools/many_rows.py {Path(model).name} --rows {count}"
    lines = (
        "# Many rows",
        "",
        f"Made by `{command}` on {os.cpu_count()} cores: {count:,} rows of chat, {data.stat().st_size / 1e6:.0f} MB of",
        "jsonl with random words, read and encoded as `prgec run` does before its first step.",
        "",
        "| what | |",
        "|---|---|",
        f"| read and checked | {found['read']:.1f} s |",
        f"| encoded: template, tokens, what is learned | {found['encode']:.1f} s |",
        f"| the tokenizer's own time in that, one thread | {seconds:.1f} s |",
        f"| all without the tokenizer's own time | {rest:.1f} s |",
        f"| peak memory of the process | {found['peak_mb']} MB |",
        "",
    )
    return "\n".join(lines)


def _write(path: Path, count: int) -> None:
    source, words = random.Random(0), WORDS.split()

    def text(least: int, most: int) -> str:
        return " ".join(source.choice(words) for _ in range(source.randint(least, most))).capitalize() + "."

    with path.open("w") as file:
        for _ in range(count):
            turns = [{"role": "user", "content": text(8, 36)}, {"role": "assistant", "content": text(8, 40)}]
            file.write(json.dumps({"messages": turns}) + "\n")


def _python(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
