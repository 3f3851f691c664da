"""Proves that OpenVINO computes in f32 in this process, before anything is trained by what it computes.

A matrix product goes the way of a program: exported, imported from memory without a setting, the memory then given to
somebody else, as ExecuTorch's delegate does.
"""

from __future__ import annotations

import ctypes
import math
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from prgec.backends.openvino.libraries import LIBRARY_VARIABLE, load_libraries
from prgec.core.machine.extras import extra_hint
from prgec.errors import BackendError

_WIDTH = 64
# The least f32 above 1 that bfloat16, float16 and TF32 all take for 1.
_VALUE = 1.0 + 2.0**-12
_EXACT = _WIDTH * _VALUE * _VALUE
# A sum of so few products in f32 is off by less; one in 16 bits is off by 5e-4.
_TOLERANCE = 1e-5
_DEVICE = b"CPU"


@cache
def check_computes_in_f32() -> None:
    """Multiply two matrices and look at the digits.

    Raises:
        BackendError: If they are not those of f32.
    """
    with tempfile.TemporaryDirectory(prefix="prgec-openvino-") as folder:
        check_product(_product(Path(folder)))


def check_product(found: float) -> None:
    """Check one element of the product.

    Raises:
        BackendError: With what is wrong, where it is not right to f32.
    """
    if abs(found - _EXACT) <= _TOLERANCE * _EXACT:
        return
    if math.isclose(found, _EXACT, rel_tol=1e-2):
        raise BackendError(
            f"OpenVINO computes in bfloat16 here, not in f32: {_WIDTH} x {_VALUE:.5f}^2 made {found:.5f}, not "
            f"{_EXACT:.5f}; losses would be too coarse to train by",
            hint=f"unset {LIBRARY_VARIABLE} and do not import openvino before prgec, which sets its plug-in to f32",
        )
    raise BackendError(
        f"OpenVINO computes wrong results here: {_WIDTH} x {_VALUE:.5f}^2 made {found}; this version does not keep "
        "weights that ExecuTorch hands it",
        hint=extra_hint("openvino"),
    )


def _product(folder: Path) -> float:
    """One element of the product, by OpenVINO's C interface."""
    api = _Api(load_libraries())
    core = api.made("ov_core_create")
    exported = _exported(api, core, folder)
    content = ctypes.create_string_buffer(exported, len(exported))
    compiled = api.made("ov_core_import_model", core, content, ctypes.c_size_t(len(exported)), _DEVICE)
    ctypes.memset(content, 0xFF, len(exported))
    request = api.made("ov_compiled_model_create_infer_request", compiled)
    first = ctypes.c_size_t(0)
    matrix = api.values(api.made("ov_infer_request_get_input_tensor_by_index", request, first))
    matrix[:] = [_VALUE] * len(matrix)
    api.call("ov_infer_request_infer", request)
    found = float(api.values(api.made("ov_infer_request_get_output_tensor_by_index", request, first))[0])
    api.free(infer_request=request, compiled_model=compiled, core=core)
    return found


def _exported(api: _Api, core: ctypes.c_void_p, folder: Path) -> bytes:
    """The model as ExecuTorch's programs carry models."""
    weights, text, exported = folder / "weights.bin", folder / "model.xml", folder / "model.blob"
    np.full((_WIDTH, _WIDTH), _VALUE, dtype=np.float32).tofile(weights)
    text.write_text(_MODEL)
    model = api.made("ov_core_read_model", core, bytes(text), bytes(weights))
    compiled = api.made("ov_core_compile_model", core, model, _DEVICE, ctypes.c_size_t(0))
    api.call("ov_compiled_model_export_model", compiled, bytes(exported))
    api.free(compiled_model=compiled, model=model)
    return exported.read_bytes()


class _Api:
    """Calls of OpenVINO's C interface, which return a status and hand back objects through their last argument."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; a status other than 0 is a failure."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise BackendError(f"OpenVINO fails: {name} returned {status}", hint=extra_hint("openvino"))

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Return the object a function makes."""
        result = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(result))
        return result

    def values(self, tensor: ctypes.c_void_p) -> ctypes.Array[ctypes.c_float]:
        """Return the numbers of a tensor, where they are."""
        address = self.made("ov_tensor_data", tensor)
        return (ctypes.c_float * _WIDTH**2).from_address(address.value or 0)

    def free(self, **objects: ctypes.c_void_p) -> None:
        """Give objects back, by kind."""
        for kind, each in objects.items():
            release = getattr(self._library, f"ov_{kind}_free")
            release.restype = None
            release(each)


def _ports(first: int, count: int) -> str:
    dims = f"<dim>{_WIDTH}</dim>" * 2
    return "".join(f'<port id="{first + each}" precision="FP32">{dims}</port>' for each in range(count))


_SQUARE = f'shape="{_WIDTH},{_WIDTH}" element_type="f32"'
_MODEL = f"""<?xml version="1.0"?><net name="product" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data {_SQUARE}/><output>{_ports(0, 1)}</output></layer>
<layer id="1" name="w" type="Const" version="opset1"><data {_SQUARE} offset="0" size="{4 * _WIDTH**2}"/>
<output>{_ports(0, 1)}</output></layer>
<layer id="2" name="y" type="MatMul" version="opset1"><data transpose_a="false" transpose_b="true"/>
<input>{_ports(0, 2)}</input><output>{_ports(2, 1)}</output></layer>
<layer id="3" name="r" type="Result" version="opset1"><input>{_ports(0, 1)}</input></layer>
</layers><edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>
</edges></net>"""
