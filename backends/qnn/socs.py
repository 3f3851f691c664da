"""The chips programs are compiled for, with the generation of their HTP. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from prgec.errors import UsageError

DEFAULT_SOC = "SM8650"
# Older ones compute in integers only.
_FIRST_WITH_FP16 = 69


@dataclass(frozen=True)
class Soc:
    """One chip.

    Attributes:
        name: Qualcomm's part number, as `--soc` takes it.
        generation: HTP architecture: 75 for v75. Programs run on the generation they were compiled for.
        sold_as: Name on the box, where there is one.
    """

    name: str
    generation: int
    sold_as: str = ""


# Those ExecuTorch 1.5 has memory sizes for.
_SOCS = (
    Soc("SM8650", 75, "Snapdragon 8 Gen 3"),
    Soc("SM8850", 81, "Snapdragon 8 Elite Gen 5"),
    Soc("SM8845", 81),
    Soc("SM8750", 79, "Snapdragon 8 Elite"),
    Soc("SM8550", 73, "Snapdragon 8 Gen 2"),
    Soc("SM8475", 69, "Snapdragon 8+ Gen 1"),
    Soc("SM8450", 69, "Snapdragon 8 Gen 1"),
    Soc("SM8350", 68, "Snapdragon 888"),
    Soc("SC8380XP", 73, "Snapdragon X Elite"),
    Soc("QCM6490", 68),
    Soc("QCS9100", 73),
    Soc("SA8255", 73),
    Soc("SA8295", 68),
    Soc("SA8797", 81),
    Soc("SAR2230P", 81),
    Soc("SSG2115P", 73),
    Soc("SSG2125P", 73),
    Soc("SW6100", 81),
    Soc("SXR1230P", 73),
    Soc("SXR2230P", 69),
    Soc("SXR2330P", 79),
)
SOCS: dict[str, Soc] = {soc.name: soc for soc in _SOCS}


def device_needs(soc: str, qairt: str) -> str:
    """The requirements on a device that is to run a program, in one line; empty for an unknown chip.

    Args:
        soc: Chip the program was compiled for.
        qairt: Version of the libraries that compiled it.
    """
    if soc not in SOCS:
        return ""
    found = SOCS[soc]
    sold = f", {found.sold_as}" if found.sold_as else ""
    return f"{soc} (HTP v{found.generation}{sold}) with Qualcomm's QNN libraries {qairt} or later"


def find_soc(name: str) -> Soc:
    """Return the chip called `name`, in any case.

    Raises:
        UsageError: If there is none, or it cannot compute in fp16.
    """
    usable = ", ".join(soc.name for soc in _SOCS if soc.generation >= _FIRST_WITH_FP16)
    soc = SOCS.get(name.upper())
    if soc is None:
        raise UsageError(f"--soc names no known chip: {name!r}", hint=f"chips: {usable}")
    if soc.generation < _FIRST_WITH_FP16:
        raise UsageError(
            f"--soc {soc.name} has HTP v{soc.generation}, which cannot compute in fp16",
            hint=f"chips that can: {usable}",
        )
    return soc
