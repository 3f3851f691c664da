"""Compile a tiny random model of every architecture and compare it with transformers.

    python tools/architectures.py [NAME ...] [--backend xnnpack] [--method exact ...] [--json | --markdown]

Each row compiles one model with a dynamic T and all linear layers as sites, evaluates it at several T against the
untouched model, and trains it for a few steps beside textbook MeZO on that model. `--markdown` prints
docs/architectures.md; with `--backend qnn`, whose T is fixed, the rows alone. With `--method exact` or `shortcut` the
program computes its own gradient, which is compared with autograd's on the untouched model. The exit code is 1 if one
is not a single delegate or out of bounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from prgec.core.contract.names import TRAINING_METHODS
from prgec.core.machine.quiet import quiet_libraries

if TYPE_CHECKING:
    from tests.architectures import Measured
    from tests.gradient_architectures import MeasuredGradient

# The HTP computes in fp16.
MAX_REL_LOSS_DIFF = {"xnnpack": 1e-4, "qnn": 2e-2}
_INTRODUCTION = """# Architectures

Tiny random models of these architectures compile for XNNPACK with a dynamic T and every linear layer but the head as a
site. Loss: largest relative difference from the untouched transformers model, with eps = 0 and g = 0, at T = 2 to 16.
Training loss: the same against textbook MeZO on that model over four steps. CPU ops: calls outside the delegate, one
`prge.perturbation` a site among them. Made by:

    python tools/architectures.py --markdown > docs/architectures.md
"""
_OUTSIDE = """
Other architectures compile as long as `torch.export` traces them. Where XNNPACK refuses an op, the forward is split
into more delegates, and `prgec compile` and `prgec inspect` list the op with the reason.

## Outside the delegate
"""
_GRADIENT_TABLE = ("Architecture", "Method", "Sites", "Delegates", "CPU ops", "Loss", "Gradient", "Cosine")
_TABLE = ("Architecture", "Beside a Llama", "Sites", "Delegates", "CPU ops", "Loss", "Training loss")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen architectures; return the exit code."""
    options = _parse(argv)
    quiet_libraries()
    import torch

    from tests.architectures import ARCHITECTURES, architecture, measure
    from tests.gradient_architectures import measure_gradient

    # Tensors this small lose more to threads than they gain.
    torch.set_num_threads(1)
    unknown = set(options.names) - {each.name for each in ARCHITECTURES}
    if unknown:
        print(
            f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(a.name for a in ARCHITECTURES)}", file=sys.stderr
        )
        return 2
    chosen = [architecture(name) for name in options.names] or ARCHITECTURES
    rows: list[Measured] = []
    gradients: list[MeasuredGradient] = []
    with tempfile.TemporaryDirectory() as folder:
        for each in chosen:
            print(f"{each.name} ...", file=sys.stderr, flush=True)
            for method in options.method or ():
                gradients.append(measure_gradient(each, Path(folder), method, backend=options.backend))
            if not options.method:
                rows.append(measure(each, Path(folder), backend=options.backend))
    bound = MAX_REL_LOSS_DIFF[options.backend]
    passed = all(_is_good(row, bound) for row in rows) and all(_is_right(each, bound) for each in gradients)
    if options.json:
        document = {"passed": passed, "bound": bound, "rows": [asdict(row) for row in (*rows, *gradients)]}
        print(json.dumps(document, indent=2))
    elif options.method:
        print("\n".join(_gradient_rows(gradients)))
    elif options.backend == "xnnpack":
        print(_page(rows))
    else:
        print("\n".join(_rows(rows)))
    return 0 if passed else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="architectures as the table spells them (default: all)"
    )
    parser.add_argument("--backend", choices=MAX_REL_LOSS_DIFF, default="xnnpack", help="what to compile for")
    parser.add_argument(
        "--method", action="append", choices=TRAINING_METHODS[1:], help="compare its gradient; repeatable"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--markdown", action="store_true", help="print Markdown (default)")
    return parser.parse_args(argv)


def _is_good(row: Measured, bound: float) -> bool:
    return len(row.delegates) == 1 and max(row.max_rel_loss_diff, row.max_rel_train_diff) <= bound


def _is_right(row: MeasuredGradient, bound: float) -> bool:
    return len(row.delegates) == 1 and max(row.max_rel_loss_diff, row.max_rel_gradient_diff) <= bound


def _gradient_rows(rows: Sequence[MeasuredGradient]) -> list[str]:
    lines = [_line(_GRADIENT_TABLE), _line("-" * len(name) for name in _GRADIENT_TABLE)]
    for row in rows:
        delegates = f"{len(row.delegates)} ({' + '.join(map(str, row.delegates))} ops)"
        found = (f"{row.max_rel_loss_diff:.0e}", f"{row.max_rel_gradient_diff:.0e}", f"{row.min_cosine:.9f}")
        lines.append(_line((row.architecture, row.method, str(row.sites), delegates, str(row.cpu_ops), *found)))
    return lines


def _page(rows: Sequence[Measured]) -> str:
    """The page: one line an architecture, then why each op that stays outside does."""
    lines = [_INTRODUCTION, *_rows(rows), _OUTSIDE]
    for reason in sorted({reason for row in rows for _, _, reason in row.cpu_ops}):
        ops = sorted({op for row in rows for op, _, why in row.cpu_ops if why == reason})
        text = f"- {reason}: " + ", ".join(f"`{op}`" for op in ops)
        lines += textwrap.wrap(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _rows(rows: Sequence[Measured]) -> list[str]:
    lines = [_line(_TABLE), _line("-" * len(name) for name in _TABLE)]
    for row in rows:
        outside = sum(count for _, count, _ in row.cpu_ops)
        delegates = f"{len(row.delegates)} ({' + '.join(map(str, row.delegates))} ops)"
        lines.append(
            _line(
                (
                    row.architecture,
                    row.features,
                    str(row.sites),
                    delegates,
                    str(outside),
                    f"{row.max_rel_loss_diff:.0e}",
                    f"{row.max_rel_train_diff:.0e}",
                )
            )
        )
    return lines


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
