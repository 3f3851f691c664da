"""The files of a data set that is kept in several: a folder, a pattern, or what `datasets` saves."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prgec.core.data.opening import STDIN
from prgec.errors import DataError

# Files of rows; a folder may hold others, such as a README.
_ROWS = re.compile(r"\.(jsonl|ndjson|json|csv|tsv|txt|parquet|arrow)(\.(gz|xz|bz2|zst))?$", re.I)
_ABOUT = {"dataset_info.json", "dataset_infos.json", "state.json", "README.txt", "LICENSE.txt"}
_SPLITS = {"train": "train", "test": "test", "validation": "dev", "valid": "dev", "val": "dev", "dev": "dev"}
# Written by datasets: which files hold the rows of a saved folder, in which order; and that a folder is several.
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"


def files_of(path: Path) -> list[Path]:
    """Return the files that hold the rows of a path, in order: itself, those of a folder, or those of a pattern.

    Raises:
        DataError: If a folder has none, or those of several splits.
    """
    if str(path) == STDIN or path.is_file():
        return [path]
    if path.is_dir():
        return _files_of_folder(path)
    if "*" in path.name:
        found = sorted(each for each in path.parent.glob(path.name) if each.is_file())
        if not found:
            raise DataError("no file fits the pattern", where=path)
        return found
    return [path]


def _files_of_folder(folder: Path) -> list[Path]:
    if (folder / _SAVED_SPLITS).is_file():
        names = ", ".join(sorted(each.name for each in folder.iterdir() if each.is_dir()))
        raise DataError(f"the folder has the splits {names}", where=folder, hint="name the folder of one")
    if (folder / _SAVED).is_file():
        return _saved(folder)
    found = sorted(each for each in folder.iterdir() if each.is_file() and _is_rows(each))
    below = [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")]
    if not found and len(below) == 1:
        return _files_of_folder(below[0])
    if not found:
        raise DataError("the folder has no data files", where=folder, hint="it needs jsonl, json, csv, tsv or parquet")
    splits = sorted({split for each in found if (split := _split_of(each))})
    if len(splits) > 1:
        raise DataError(
            f"the folder has files of the splits {', '.join(splits)}",
            where=folder,
            hint="name a file, or a pattern such as 'train*'",
        )
    return found


def _is_rows(path: Path) -> bool:
    return _ROWS.search(path.name) is not None and path.name not in _ABOUT and not path.name.startswith(".")


def _split_of(path: Path) -> str:
    parts = re.split(r"[-_.]", path.name.lower())
    return next((_SPLITS[part] for part in parts if part in _SPLITS), "")


def _saved(folder: Path) -> list[Path]:
    """Return the files of a folder that `save_to_disk` wrote."""
    try:
        state = json.loads((folder / _SAVED).read_bytes())
        files = [folder / each["filename"] for each in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the saved data set is damaged: {error}", where=folder / _SAVED) from error
    if any(file.parent != folder for file in files):
        raise DataError("the saved data set names files elsewhere", where=folder / _SAVED)
    if state.get("_indices_data_files") or not files:
        raise DataError("the saved data set was not written out", where=folder, hint="save it after flatten_indices()")
    return files
