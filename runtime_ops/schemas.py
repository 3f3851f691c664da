"""The schemas of the `prge` operators, each written once.

torch.library, the eager reference, the C++ kernels and the tests all follow these texts. Each operator has the
functional overload a graph calls and the `.out` overload ExecuTorch calls after memory planning.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "prge"


@dataclass(frozen=True)
class OpSchema:
    """One operator returning one tensor.

    Attributes:
        name: Operator name without the namespace.
        arguments: Arguments of both overloads in schema syntax.
        out_alias: Alias letter of the out argument; free of those in `arguments`.
    """

    name: str
    arguments: str
    out_alias: str

    @property
    def qualified_name(self) -> str:
        """Name with the namespace, e.g. `prge::randn`."""
        return f"{NAMESPACE}::{self.name}"

    @property
    def functional(self) -> str:
        """Schema of the overload that returns a new tensor."""
        return f"{self.name}({self.arguments}) -> Tensor"

    @property
    def out(self) -> str:
        """Schema of the overload that writes into `out`."""
        written = f"Tensor({self.out_alias}!)"
        return f"{self.name}.out({self.arguments}, *, {written} out) -> {written}"


RANDN = OpSchema(name="randn", arguments="Tensor seed, Tensor step, int site, int q, int[] shape", out_alias="a")
DUAL_UPDATE = OpSchema(
    name="dual_update",
    arguments="Tensor(a!) master, Tensor g, Tensor lr, Tensor eps, Tensor seed, Tensor step, int site",
    out_alias="b",
)
PERTURBATION = OpSchema(name="perturbation", arguments=DUAL_UPDATE.arguments, out_alias="b")
STEP_SCALE = OpSchema(
    name="step_scale",
    arguments="Tensor(a!) running, Tensor[] gradients, Tensor losses, Tensor lr, float clip, float beta1, float beta2, "
    "bool normalise, float polyak",
    out_alias="z",
)
SGD_UPDATE = OpSchema(
    name="sgd_update",
    arguments="Tensor(a!) master, Tensor gradient, Tensor lr, Tensor factors, float decay",
    out_alias="z",
)
MOMENTUM_UPDATE = OpSchema(
    name="momentum_update",
    arguments="Tensor(a!) master, Tensor(b!) mean, Tensor gradient, Tensor lr, Tensor factors, float beta1, "
    "float decay",
    out_alias="z",
)
ADAMW_UPDATE = OpSchema(
    name="adamw_update",
    arguments="Tensor(a!) master, Tensor(b!) mean, Tensor(c!) square, Tensor gradient, Tensor lr, Tensor factors, "
    "float beta1, float beta2, float eps, float decay",
    out_alias="z",
)
ACCUMULATE = OpSchema(name="accumulate", arguments="Tensor(a!) total, Tensor value, Tensor call", out_alias="z")
SCHEMAS = (RANDN, DUAL_UPDATE, PERTURBATION, STEP_SCALE, SGD_UPDATE, MOMENTUM_UPDATE, ADAMW_UPDATE, ACCUMULATE)
