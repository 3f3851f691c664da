"""A file says options as flags do: it is read back as it was written, and what it says wrongly is named."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from prgec.core.config.option import argument, option, table_of
from prgec.core.config.toml_file import read_options, write_options
from prgec.errors import UsageError


@dataclass(frozen=True)
class Trip:
    vehicle: Path = field(metadata=argument())
    guide: str = option("people", "none", "The one who leads.", is_place=True)
    people: tuple[str, ...] = option("people", ("ann",), "The one who goes.")
    luggage: Path | None = option("load", None, "What comes along.", "--bag", no_path=("web:",), words=("none",))
    maps: tuple[Path, ...] = option("load", (), "What shows the way.")
    wheels: int = option("load", 4, "How many.", choices=(2, 4))
    km_per_hour: float = option("speed", 1.5, "How fast.")
    is_circular: bool = option("speed", False, "Whether it ends where it began.", "--round")
    diary: Path | None = option("speed", None, "Where to write.", is_kept=False)
    mood: Mapping[str, str] = field(default_factory=dict)


TABLE = table_of(Trip)


def _write(folder: Path, text: str) -> Path:
    path = folder / "trip.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _text(trip: Trip, folder: Path | None = None) -> str:
    return write_options(vars(trip), TABLE, folder=folder, remark="a trip")


def test_table() -> None:
    assert [item.key for item in TABLE] == "vehicle guide people bag maps wheels km-per-hour round diary".split()
    assert [item.kind for item in TABLE] == [Path, str, str, Path, Path, int, float, bool, Path]
    assert [item.name for item in TABLE if item.is_many] == ["people", "maps"]
    assert [item.name for item in TABLE if item.is_argument] == ["vehicle"]


def test_text() -> None:
    trip = Trip(Path("car"), people=("a\\.b", 'ü"1'), luggage=Path("web:x"), km_per_hour=1e-7, diary=Path("d"))
    assert _text(trip) == (
        '# a trip\nvehicle = "car"\n\n[people]\nguide = "none"\npeople = ["a\\\\.b", "ü\\"1"]\n\n'
        '[load]\nbag = "web:x"\nmaps = []\nwheels = 4\n\n[speed]\nkm-per-hour = 1e-07\nround = false\n'
    )


@pytest.mark.parametrize(
    "trip",
    [
        Trip(Path("car")),
        Trip(
            Path("a b"),
            people=("\x7f\t\n\U0001f600", "^x.*[,]$"),
            luggage=Path("web:a:b"),
            maps=(Path("m"), Path("n/o")),
            wheels=2,
            km_per_hour=0.1 + 0.2,
            is_circular=True,
        ),
    ],
)
def test_what_is_written_is_read_back(trip: Trip, tmp_path: Path) -> None:
    text = _text(trip, tmp_path)
    tomllib.loads(text)
    found = Trip(**read_options(_write(tmp_path, text), TABLE))
    here = Path.cwd()
    assert found.people == trip.people and found.km_per_hour == trip.km_per_hour and found.luggage == trip.luggage
    assert (found.wheels, found.is_circular) == (trip.wheels, trip.is_circular)
    assert found.vehicle == here / trip.vehicle and found.maps == tuple(here / each for each in trip.maps)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "guide.txt").touch()
    path = _write(tmp_path, 'vehicle = "../car"\n[people]\nguide = "guide.txt"\n[load]\nbag = "web:x"\nmaps = ["/m"]\n')
    found = read_options(path, TABLE)
    assert found["vehicle"] == tmp_path / "../car" and found["maps"] == (Path("/m"),)
    assert found["guide"] == str(tmp_path / "guide.txt") and found["luggage"] == Path("web:x")
    assert read_options(_write(tmp_path, '[people]\nguide = "eve"'), TABLE) == {"guide": "eve"}


def test_a_word_is_not_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = _text(Trip(Path("car"), luggage=Path("none")), Path("trips"))
    assert 'bag = "none"' in text
    assert read_options(_write(tmp_path, text), TABLE)["luggage"] == Path("none")
    assert read_options(_write(tmp_path, '[load]\nbag = "none.txt"'), TABLE)["luggage"] == tmp_path / "none.txt"


def test_a_tree_may_move_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "trips").mkdir(parents=True)
    monkeypatch.chdir(home)
    trip = Trip(Path("car"), luggage=tmp_path / "shop" / "bag")
    text = _text(trip, Path("trips"))
    assert 'vehicle = "../car"' in text and f'bag = "{tmp_path}/shop/bag"' in text
    home.rename(tmp_path / "moved")
    found = read_options(_write(tmp_path / "moved" / "trips", text), TABLE)
    assert found["vehicle"].resolve() == tmp_path / "moved" / "car"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sped]", "there is no section [sped] ({path}). Hint: did you mean speed?"),
        ("[xyz]", "there is no section [xyz] ({path}). Hint: known: load, people, speed"),
        ("[load]\nwheel = 2", "there is no option 'wheel' in [load] ({path}). Hint: did you mean wheels?"),
        ("[load]\nround = true", "there is no option 'round' in [load] ({path}). Hint: it belongs in [speed]"),
        ("wheels = 2", "there is no option 'wheels' ({path}). Hint: it belongs in [load]"),
        ("vehikle = 'x'", "there is no option 'vehikle' ({path}). Hint: did you mean vehicle?"),
        ("[load]\nwheels = 3", "wheels is 3; expected one of 2, 4 ({path})"),
        ("[load]\nwheels = '2'", "wheels is '2'; expected an integer ({path})"),
        ("[load]\nwheels = true", "wheels is True; expected an integer ({path})"),
        ("[load]\nmaps = [1]", "maps is 1; expected a text in quotes ({path})"),
        ("[speed]\nround = 1", "round is 1; expected true or false ({path})"),
        ("[speed]\nkm-per-hour = 'x'", "km-per-hour is 'x'; expected a number ({path})"),
        ("[load", "the options are not TOML: "),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_options(path, TABLE)
    assert str(caught.value).startswith(message.format(path=path))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^cannot read the options: No such file or directory"):
        read_options(tmp_path / "none.toml", TABLE)


@pytest.mark.parametrize("value", ['"ann,bob"', '["ann", "bob"]'])
def test_names_between_commas_are_as_good_as_a_list(value: Any, tmp_path: Path) -> None:
    assert read_options(_write(tmp_path, f"[people]\npeople = {value}"), TABLE) == {"people": ("ann", "bob")}
