"""Install prgec without and with its compiler, each in an empty environment, and write the report.

    python tools/install_report.py                   # docs/reports/install.md; takes some minutes

A program compiled in the second environment trains, is evaluated, talks and is exported in the first one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from board.commit import code_commit

from prgec.core.machine.describe import describe_machine

ROOT = Path(__file__).resolve().parent.parent
RUNTIME, COMPILER = "", "[compile]"
COMPILE = ("compile", "demo", "--data", "{data}", "--generate", "--context", "128", "-o", "model.pte", "--no-cache")
USES = (
    ("run", "model.pte", "--data", "{data}", "--eval-data", "{dev}", "--steps", "20", "--out", "run"),
    ("eval", "model.pte", "--data", "{dev}", "--adapter", "run"),
    ("predict", "model.pte", "--text", "a film of rare warmth", "--adapter", "run"),
    ("chat", "model.pte", "--adapter", "run"),
    ("export", "run", "--format", "peft", "-o", "peft"),
    ("report", "run"),
)
PIP = ("pip", "setuptools", "_distutils_hack", "pkg_resources")
QUESTION = "a film of rare warmth\n"


@dataclass(frozen=True)
class Installation:
    """An environment.

    Attributes:
        extra: The part of prgec in it.
        seconds: Time from nothing to the help of the command line.
        num_bytes: Size of its packages, without pip.
        num_packages: Number of packages, without pip.
    """

    extra: str
    seconds: float
    num_bytes: int
    num_packages: int


def main() -> None:
    """Parse the command line, install twice, use the program, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "install", help="folder, emptied first")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs" / "reports" / "install.md")
    arguments = parser.parse_args()
    work: Path = arguments.work
    commit = code_commit()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(work), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (wheel,) = work.glob("*.whl")
    installed = [install(work / f"env{extra.strip('[]')}", wheel, extra) for extra in (RUNTIME, COMPILER)]
    folder = work / "use"
    folder.mkdir()
    prgec(work / "envcompile", folder, COMPILE)
    shown = [" ".join(use).format(data="train.jsonl", dev="dev.jsonl") for use in USES]
    lines = [f"$ prgec {text}\n{prgec(work / 'env', folder, use)}" for text, use in zip(shown, USES, strict=True)]
    arguments.out.write_text(report(installed, wheel, lines, commit), encoding="utf-8")


def install(environment: Path, wheel: Path, extra: str) -> Installation:
    """Make an environment and install the wheel in it."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    command = [str(environment / "bin" / "pip"), "install", "-q", "--no-compile", f"{wheel}{extra}"]
    subprocess.run(command, check=True)
    subprocess.run([str(environment / "bin" / "prgec"), "--help"], check=True, capture_output=True)
    seconds = time.monotonic() - start
    (packages,) = (environment / "lib").glob("python*/site-packages")
    own = [path for path in packages.iterdir() if path.name.split("-")[0] not in PIP]
    files = [file for path in own for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    num_packages = sum(path.name.endswith(".dist-info") for path in own)
    return Installation(extra, seconds, sum(file.stat().st_size for file in files), num_packages)


def prgec(environment: Path, folder: Path, arguments: tuple[str, ...]) -> str:
    """Run a command of an environment; return what it printed."""
    data = ROOT / "prgec" / "demo" / "data"
    filled = [each.format(data=data / "train.jsonl", dev=data / "dev.jsonl") for each in arguments]
    command = [str(environment / "bin" / "prgec"), *filled]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, input=QUESTION)
    return done.stdout.strip()


def report(installed: list[Installation], wheel: Path, lines: list[str], commit: str) -> str:
    """Return the report."""
    machine = describe_machine()
    cores, python = machine["cores"], machine["versions"]["python"]
    rows = [
        f"| the wheel{' with the extra `compile`' if each.extra else ''} "
        f"| {each.num_packages} | {each.num_bytes / 1e6:,.0f} MB | {each.seconds:.0f} s |"
        for each in installed
    ]
    text = "\n\n".join(lines)
    return (
        "# Installing\n\n"
        f"`python tools/install_report.py` by the code of {commit} on {machine['cpu']}, {cores} cores, "
        f"{machine['system']}, Python {python}. "
        f"The wheel has {wheel.stat().st_size / 1e6:.1f} MB; packages come from an index near by.\n\n"
        "Seconds are from nothing to what `prgec --help` prints; sizes are those of site-packages without pip, and "
        "without compiled modules.\n\n"
        "| what | packages | size | time |\n|---|---:|---:|---:|\n"
        + "\n".join(rows)
        + "\n\nA program compiled in the second environment, in the first one:\n\n```\n"
        + text.replace(str(ROOT) + "/", "")
        + "\n```\n"
    )


if __name__ == "__main__":
    main()
