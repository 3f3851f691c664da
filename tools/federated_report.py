"""The results of many devices that learn together, at equal rows: scalars beside states, and one that harms.

    python tools/make_smollm2.py -o smollm2-135m
    python tools/make_reviews.py -o reviews
    python tools/federated_report.py smollm2-135m reviews --work federated   # docs/reports/federated.md, about 3 hours

All devices are played by this machine (`prgec federate simulate`), one after the other. Cases that are in the work
folder, or in the file of findings, are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.formats.fleet_folder import read_rounds
from prgec.runtime.federated.messages import Fields
from prgec.runtime.federated.open import Fleet, simulation
from prgec.runtime.federated.options import FleetOptions
from prgec.runtime.training.privacy import privacy_terms

ROOT = Path(__file__).resolve().parent.parent
FINDINGS = ROOT / "studies" / "results" / "federated.jsonl"
TASK = ROOT / "studies" / "tasks" / "reviews.toml"
COMPILE = ("--seq-len", "64", "--label-tokens", "1", "--quantize", "8da4w")
METHODS = {"exact": ("--batch-size", "8"), "prge": ("--q", "4", "--batch-size", "4")}
RATES = {"exact": 1e-3, "prge": 3e-3}
# Rounds and local steps by devices; their product with the devices is the same for all of a method.
ROUNDS = {1: (12, 40), 4: (12, 10), 16: (6, 5), 64: (3, 3)}
# Below one divided by the rows.
DELTA = 1e-4
# A device that harms sends what it learnt, turned around and this many times as long.
HARM = -10.0


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        method: How devices train.
        devices: Number of devices.
        skew: How unequally answers are dealt out; None for equally.
        merge: How contributions become one.
        is_harmed: Whether one device harms.
        server_lr: Learning rate of FedAdam; 0 without it.
        proximal: FedProx's mu; 0 without it.
        epsilon: Budget of privacy of each device; 0 for devices that hide nothing.
    """

    method: str
    devices: int
    skew: float | None = None
    merge: str = "mean"
    is_harmed: bool = False
    server_lr: float = 0.0
    proximal: float = 0.0
    epsilon: float = 0.0

    @property
    def name(self) -> str:
        """Name of its folder."""
        parts = [self.method, str(self.devices), f"skew{self.skew}" if self.skew else "equal", self.merge]
        numbers = {"adam": self.server_lr, "proximal": self.proximal, "epsilon": self.epsilon}
        parts += [f"{name}{number:g}" for name, number in numbers.items() if number]
        return "-".join([*parts, *(["harmed"] if self.is_harmed else [])])

    @property
    def merge_text(self) -> str:
        """How the table names what the server makes of contributions."""
        if self.server_lr:
            return f"FedAdam, lr {self.server_lr:g}"
        return f"mean, FedProx {self.proximal:g}" if self.proximal else self.merge


CASES = [
    *(Case(method, devices) for method in METHODS for devices in (1, 4, 16)),
    *(Case("prge", 4, epsilon=epsilon) for epsilon in (8.0, 2.0)),
    Case("exact", 4, 0.1),
    *(Case("exact", 4, 0.1, server_lr=server_lr) for server_lr in (1e-2, 1e-3)),
    Case("exact", 4, 0.1, proximal=30.0),
    Case("prge", 4, 0.1),
    *(Case(method, 64) for method in METHODS),
    *(Case(method, 4, 1.0) for method in METHODS),
    Case("exact", 4, is_harmed=True),
    Case("exact", 4, merge="median", is_harmed=True),
    Case("prge", 4, is_harmed=True),
    Case("prge", 4, merge="clipped", is_harmed=True),
]


def harm(number: int, answer: Fields) -> Fields:
    """Turn around what device 0 learnt."""
    if number or not answer["body"]:
        return answer
    return {**answer, "body": (HARM * np.frombuffer(answer["body"], dtype="<f4")).astype("<f4").tobytes()}


def run(case: Case, program: Path, data: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a case, or return the lines that it has left."""
    rounds, local_steps = ROUNDS[case.devices]
    options = FleetOptions(
        program=program,
        rounds=rounds,
        devices=case.devices,
        min_devices=case.devices,
        local_steps=local_steps,
        lr=RATES[case.method],
        merge=case.merge,
        server_optimizer="adam" if case.server_lr else "none",
        server_lr=case.server_lr or FleetOptions.server_lr,
        proximal=case.proximal,
        eval_data=data / "test.jsonl",
        eval_every=rounds,
        task=str(TASK),
        out=folder / case.name,
    )
    # One line is from before the first round.
    if not options.out.exists() or len(read_rounds(options.out)) <= rounds:
        terms = privacy_terms(case.epsilon, DELTA, 0.0)
        exchange = simulation(options, data / "train.jsonl", case.skew, terms)
        if case.is_harmed:
            exchange.change = harm
        with Fleet(options) as fleet:
            fleet.run(exchange, on_line=lambda line: print(case.name, line["round"], line.get("accuracy"), flush=True))
    return read_rounds(options.out)


def row(case: Case, lines: list[Mapping[str, Any]]) -> str:
    """Return a line of the table."""
    rounds = [line for line in lines if line["round"]]
    rows = "equal" if case.skew is None else f"Dirichlet {case.skew}"
    up = np.mean([line["up_bytes"] / case.devices for line in rounds]) / 1e3
    down = np.mean([line["down_bytes"] / case.devices for line in rounds]) / 1e3
    last = lines[-1]
    cells = [
        case.method,
        case.devices,
        rows,
        case.merge_text,
        "one" if case.is_harmed else "none",
        f"{case.epsilon:g}" if case.epsilon else "",
        len(rounds),
        f"{up:,.1f}",
        f"{down:,.1f}",
        f"{lines[0]['accuracy']:.1%} -> {last['accuracy']:.1%}",
        f"{last['loss']:.4f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def compiled(method: str, model: Path, data: Path, folder: Path) -> Path:
    """Compile the program of a method, unless it is there."""
    path = folder / f"{method}.pte"
    if not path.exists():
        files = ("--data", str(data / "train.jsonl"), "--task", str(TASK), "-o", str(path))
        command = ["compile", str(model), "--method", method, *METHODS[method], *COMPILE, *files]
        subprocess.run([sys.executable, "-m", "prgec", *command], check=True)
    return path


def main() -> None:
    """Run all cases and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint of SmolLM2-135M-Instruct")
    parser.add_argument("data", type=Path, help="folder of make_reviews.py")
    parser.add_argument("--work", type=Path, default=Path("federated"), help="folder of programs and runs")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="file of cases that were run")
    parser.add_argument("--cases", type=int, default=len(CASES), help="run the first so many, and report all known")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "reports" / "federated.md")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    known: dict[str, list[dict[str, Any]]] = {}
    if options.findings.exists():
        known = {each["case"]: each["rounds"] for each in map(json.loads, options.findings.read_text().splitlines())}
    for case in CASES[: options.cases]:
        if case.name not in known:
            program = compiled(case.method, options.model, options.data, options.work)
            known[case.name] = run(case, program, options.data, options.work)
            lines = [json.dumps({"case": name, "rounds": rounds}) + "\n" for name, rounds in sorted(known.items())]
            options.findings.write_text("".join(lines), encoding="utf-8")
    found = {case: known[case.name] for case in CASES if case.name in known}
    image = options.output.with_suffix(".png")
    plot(image, found)
    options.output.write_text(report(found, image.name), encoding="utf-8")
    print(options.output)


def plot(path: Path, found: Mapping[Case, list[dict[str, Any]]]) -> None:
    """Draw accuracy against the number of devices, and against the bytes that a device sends in the whole run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    by_devices, by_bytes = figure.subplots(1, 2, sharey=True)
    for method, colour in (("exact", "tab:red"), ("prge", "tab:blue")):
        plain = [case for case in found if case == Case(method, case.devices)]
        accuracy = [100 * found[case][-1]["accuracy"] for case in plain]
        by_devices.plot([case.devices for case in plain], accuracy, "o-", color=colour, label=method)
        for marker, label, fits in (
            ("o", "equal rows", lambda case: case == Case(case.method, case.devices)),
            ("s", "Dirichlet", lambda case: case.skew is not None),
            ("x", "one that harms", lambda case: case.is_harmed),
            ("^", "private", lambda case: case.epsilon > 0),
        ):
            cases = [case for case in found if case.method == method and fits(case)]
            sent = [sum(line.get("up_bytes", 0) for line in found[case]) / case.devices for case in cases]
            scores = [100 * found[case][-1]["accuracy"] for case in cases]
            by_bytes.scatter(sent, scores, marker=marker, color=colour, label=f"{method}, {label}" if cases else None)
    start = 100 * next(iter(found.values()))[0]["accuracy"]
    for axes in (by_devices, by_bytes):
        axes.axhline(start, color="grey", linestyle=":", linewidth=0.8)
    devices = sorted({case.devices for case in found})
    by_devices.set_xscale("log", base=2)
    by_devices.set_xticks(devices, labels=map(str, devices))
    by_bytes.set_xscale("log")
    by_devices.set(xlabel="devices, equal rows", ylabel="accuracy, %")
    by_bytes.set(xlabel="bytes that a device sends in all")
    by_devices.legend()
    by_bytes.legend(fontsize="x-small")
    figure.savefig(path)


def costs(state: float, local_steps: int, q: int = 4) -> str:
    """Return a table of what a round costs by the number of its devices, from the sizes of messages alone.

    Args:
        state: Bytes of the trained state.
        local_steps: Steps that a device takes in a round.
        q: Queries a step.
    """
    lines = [
        "| devices in a round | `prge`: kB up | kB down | server, GB | `exact`: kB up | kB down | server, GB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for devices in (10, 100, 1_000, 10_000, 1_000_000):
        up = 4 * q * local_steps
        down = min((4 * q + 8) * local_steps * devices, state)
        sides = ((up, down), (state, state))
        cells = [f"{one / 1e3:,.1f} | {two / 1e3:,.1f} | {(one + two) * devices / 1e9:,.3f}" for one, two in sides]
        lines.append(f"| {devices:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report(found: Mapping[Case, list[dict[str, Any]]], image: str) -> str:
    """Return the report, which shows the plot at `image`."""
    table = "\n".join(row(case, lines) for case, lines in found.items())
    steps = ROUNDS[1][0] * ROUNDS[1][1]
    states = [line["up_bytes"] / case.devices for case, lines in found.items() for line in lines if "up_bytes" in line]
    local_steps = 100
    starts = {lines[0]["accuracy"] for lines in found.values()}
    others = " Programs of other versions of prgec round weights differently, and so begin elsewhere."
    others = others if len(starts) > 1 else ""
    return f"""# Many devices, one adapter

Made by `python tools/federated_report.py`: SmolLM2-135M-Instruct (8da4w) on 1,000 real movie reviews, dealt out to
devices that this machine plays one after the other. One seed. All cases take about {steps} local steps:
`exact` with 8 rows a step, `prge` with q = 4 and 4 rows. Accuracy is of the 600 test rows, before the first round
and after the last.{others}

Bytes are those of the messages' values, of one device in one round, without what a transport adds.

| method | devices | rows | merge | harm | epsilon | rounds | kB up | kB down | accuracy | loss |
|---|---:|---|---|---|---:|---:|---:|---:|---:|---:|
{table}

- Up, `prge` sends 4 q bytes a local step and `exact` its whole state. Down, `prge` receives the steps of all devices.
- A device that harms sends what it learnt, turned around and ten times as long.
- With an epsilon, each device hides its rows by noise ([privacy](../privacy.md)), at a delta of {DELTA:g}.
- A device needs the memory of `prgec run`: it opens the same program.
- More devices at equal rows take fewer steps one after the other: of {steps} steps, 16 devices take
  {ROUNDS[16][0] * ROUNDS[16][1]} each, and 64 take {ROUNDS[64][0] * ROUNDS[64][1]}.

![accuracy by devices, and by bytes]({image})

## Cost of a round

Computed from the sizes of messages, for {local_steps} local steps of q = 4 and this model's trained state. A device of
`prge` gets the steps of all devices, or the state where that is shorter. So a million devices are better asked a few
hundred a round.

{costs(max(states), local_steps)}

Published figures of other ways: FedKSeed sends less than 18 kB a round (arXiv 2312.06353), and FeedSign one bit a step
in either direction (arXiv 2501.17610). They took other steps on other models. `python tools/federated_rate.py` measures
how many messages a second the server's core takes.
"""


if __name__ == "__main__":
    main()
