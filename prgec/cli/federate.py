"""`prgec federate`: many devices train one adapter; Flower carries their messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.options import SectionedCommand, options_of
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import TASK
from prgec.errors import UsageError
from prgec.runtime.federated.flower.names import DEFAULT_PORT
from prgec.runtime.federated.options import FLEET_TABLE, NODE_TABLE, FleetOptions, NodeOptions
from prgec.runtime.training.privacy import CLIP_HELP, DEFAULT_DELTA, DELTA_HELP, EPSILON_HELP, privacy_terms

FILE = click.Path(path_type=Path)


@click.group()
def federate() -> None:
    """Train one adapter on many devices, whose rows stay on them (docs/federation.md)."""


@federate.command(cls=SectionedCommand)
@options_of(FLEET_TABLE, kinds={"task": TASK})
@click.option(
    "--port", type=int, default=DEFAULT_PORT, show_default=True, help="Port of this machine's loopback address."
)
def serve(port: int, **flags: Any) -> int:
    """Run a server of PROGRAM until all rounds are done. The same command goes on after a stop.

    It listens on this machine alone; devices reach it through ssh -N -L 9092:127.0.0.1:9092 SERVER.
    """
    from prgec.runtime.federated.flower.serving import serve as run

    if not 0 < port < 1 << 16:
        raise UsageError(f"--port is {port}; expected 1 to 65535")
    options = FleetOptions(**flags)
    with stop_on_interrupt("stopping; the round that is open is lost") as should_stop:
        is_over = run(options, port=port, on_line=lambda line: print_lines(_round_line(line)), should_stop=should_stop)
    if is_over:
        print_lines(f"run folder  {options.out}")
    return 0 if is_over else INTERRUPTED_EXIT_CODE


@federate.command(cls=SectionedCommand)
@options_of(NODE_TABLE, kinds={"task": TASK})
@click.option(
    "--server", default=f"127.0.0.1:{DEFAULT_PORT}", show_default=True, metavar="HOST:PORT", help="The server."
)
@click.option("--ca", type=FILE, help="Certificates to trust as PEM, of a SuperLink of your own.")
@click.option("--key", type=FILE, help="The device's private key, where the SuperLink knows devices by keys.")
@click.option("--trusted", type=FILE, help="Flower's file of those whose apps this device runs; others are refused.")
def join(server: str, ca: Path | None, key: Path | None, trusted: Path | None, **flags: Any) -> int:
    """Train PROGRAM as a device of a server, until its run is over. The same command goes on after a stop.

    A device runs the Flower app that its server sends: join only servers that you trust.
    """
    from prgec.runtime.federated.flower.joining import Superlink
    from prgec.runtime.federated.flower.joining import join as run
    from prgec.runtime.federated.open import check_node

    options = NodeOptions(**flags)
    check_node(options)
    with stop_on_interrupt("stopping") as should_stop:
        is_over = run(options, Superlink(address=server, ca=ca, key=key, trusted=trusted), should_stop=should_stop)
    if is_over:
        print_lines(f"the run is over; the adapter is in {options.out}")
    return 0 if is_over else INTERRUPTED_EXIT_CODE


@federate.command(cls=SectionedCommand)
@options_of(FLEET_TABLE, kinds={"task": TASK})
@click.option("--data", type=FILE, required=True, help="Rows that are dealt out to the devices.")
@click.option("--skew", type=float, metavar="ALPHA", help="Deal out unequally: 0.1 very, 10 hardly [default: equally].")
@click.option("--dp-epsilon", type=float, default=0.0, show_default=True, metavar="X", help=EPSILON_HELP)
@click.option("--dp-delta", type=float, default=DEFAULT_DELTA, show_default=True, metavar="X", help=DELTA_HELP)
@click.option("--dp-clip", type=float, default=0.0, show_default=True, metavar="X", help=CLIP_HELP)
def simulate(data: Path, skew: float | None, dp_epsilon: float, dp_delta: float, dp_clip: float, **flags: Any) -> int:
    """Play all devices of PROGRAM on this machine, one after the other, to see what they would learn."""
    from prgec.runtime.federated.open import Fleet, simulation

    if skew is not None and not skew > 0:
        raise UsageError(f"--skew is {skew}; expected a number above 0")
    options = FleetOptions(**flags)
    options.check()
    exchange = simulation(options, data, skew, privacy_terms(dp_epsilon, dp_delta, dp_clip))
    with Fleet(options) as fleet:
        fleet.run(exchange, on_line=lambda line: print_lines(_round_line(line)))
    print_lines(f"run folder  {options.out}")
    return 0


@federate.command()
@click.argument("folder", type=FILE)
@options_of(FLEET_TABLE, kinds={"task": TASK})
def app(folder: Path, **flags: Any) -> int:
    """Write a Flower app to FOLDER, for flwr run and a SuperLink of your own."""
    from prgec.runtime.federated.flower.app_files import write_project

    options = FleetOptions(**flags)
    options.check()
    write_project(folder, options)
    print_lines(f"{folder}  run it with: flwr run {folder}")
    return 0


@federate.command()
@click.argument("out", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def status(out: Path, as_json: bool) -> int:
    """Show the rounds of OUT, the folder of a server."""
    from prgec.core.formats.fleet_folder import read_rounds

    rounds = read_rounds(out)
    if as_json:
        print_json({"rounds": rounds})
    else:
        print_lines(*(_round_line(line) for line in rounds))
    return 0


def _round_line(line: Mapping[str, Any]) -> str:
    parts = [
        f"round {line['round']}",
        f"{len(line['devices'])} of {line['asked']} devices",
        f"{line['up_bytes'] / 1e3:.1f} kB up",
        f"{line['down_bytes'] / 1e3:.1f} kB down",
        f"{line['seconds']:.1f} s",
    ]
    if (loss := line.get("loss")) is not None:
        parts.append(f"loss {loss:.4f}")
    if (accuracy := line.get("accuracy")) is not None:
        parts.append(f"accuracy {accuracy:.1%}")
    refused = [f"refused: {reason}" for reason in dict.fromkeys(line["refused"].values())]
    return ", ".join(parts) + "".join(f"\n  {each}" for each in refused)
