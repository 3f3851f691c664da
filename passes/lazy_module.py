"""A `GraphModule` that writes its code when somebody runs it, and not after each edit of its graph."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule


class LazyModule(GraphModule):
    """A graph with its attributes; its code is written when `forward` is read."""

    def recompile(self) -> None:  # type: ignore[override]  # there is no code to return yet
        """Forget the code."""
        type(self).forward = _Unwritten()  # type: ignore[assignment]


class _Unwritten:
    """Stands for the `forward` of one module until somebody reads it: writes it, and has it take its place."""

    def __get__(self, module: GraphModule | None, owner: type[GraphModule]) -> Any:
        if module is None:
            return self
        # GraphModule makes one class a module, and sets the `forward` of that class.
        GraphModule.recompile(module)
        return module.forward
