"""The operations of a decoder's forward, in the order and the form in which the compiler leaves them to XNNPACK.

Letters: N rows, T tokens, R = N*T, D width, H query heads, G heads to a key head, d width of a head, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from prgec.plan.shape import Linear, ModelShape
from prgec.plan.tape import F32, Op, Tape
from prgec.plan.workload import Workload


@dataclass
class Forward:
    """Writes the forward of one model onto a tape.

    Attributes:
        tape: Where it is written.
        shape: The model.
        work: How it is trained.
        rows: N of what is written next.
        sites: Reads of B, in order.
        writes: What is added to the residual stream, in order.
    """

    tape: Tape
    shape: ModelShape
    work: Workload
    rows: int

    def __post_init__(self) -> None:
        self.sites: list[int] = []
        self.writes: list[int] = []

    @property
    def tokens(self) -> int:
        """R."""
        return self.rows * self.work.seq_len

    def block(self, stream: int, trained: frozenset[str]) -> int:
        """Write one block; `trained` names the layers that have a branch."""
        tape, width = self.tape, self.tokens * self.shape.width
        attended = self._post(self._attention(self.norm(stream), trained))
        if self.shape.family.is_parallel:
            raised = self._post(self._mlp(self.norm(stream), trained))
            self.writes += [attended, raised]
            return tape.put("add", width, tape.put("add", width, raised, attended, rule="add"), stream, rule="add")
        middle = tape.put("add", width, stream, attended, rule="add")
        raised = self._post(self._mlp(self.norm(middle), trained))
        self.writes += [attended, raised]
        return tape.put("add", width, middle, raised, rule="add")

    def norm(self, x: int) -> int:
        """RMSNorm or LayerNorm over the last dimension, with its means as products with a constant."""
        return self._norm(x, self.tape.size(x) // self.shape.width)

    def head(self, stream: int) -> int:
        """Last norm, label positions, logits."""
        tape, work = self.tape, self.work
        x = self.norm(stream)
        chosen = self.rows * work.num_labels
        one_hot = tape.put("external", chosen * work.seq_len)
        picked = self._bmm(chosen * self.shape.width, one_hot, x, chosen * work.seq_len * self.shape.width)
        logits = self.linear(picked, Linear("head", self.shape.width, self.shape.vocab))
        tape.keep(logits)
        return logits

    def linear(self, x: int, layer: Linear) -> int:
        """A frozen layer; one that is quantised reads its input as int8."""
        tape = self.tape
        tokens = tape.size(x) // layer.inputs
        is_narrow = self.work.is_quantized and self.work.weight_bytes(layer.inputs) < F32
        products = tokens * layer.weights
        source = x
        if is_narrow:
            source = tape.add(Op("convert", tape.size(x), (x,), element_bytes=1))
        return tape.add(
            Op(
                "linear",
                tokens * layer.outputs,
                (source,),
                "linear",
                multiplies=products if is_narrow else 0,
                multiplies_f32=0 if is_narrow else products,
                matrix=(layer.inputs, layer.outputs),
                is_frozen=True,
            )
        )

    def product(self, x: int, inputs: int, outputs: int) -> int:
        """A product with a small constant: a mean, a rotation, an A."""
        rows = self.tape.size(x) // inputs
        products = rows * inputs * outputs
        return self.tape.add(
            Op("linear", rows * outputs, (x,), "product", multiplies_f32=products, matrix=(inputs, outputs))
        )

    def _attention(self, x: int, trained: frozenset[str]) -> int:
        """Queries, keys and values, softmax, and the layer behind them."""
        shape, tape, tokens = self.shape, self.tape, self.tokens
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        low = self._shared_branch(x, ("q", "k", "v"), trained)
        parts = [self._heads(self._site(x, name, trained, low), name) for name in ("q", "k", "v")]
        q, k = (self._rotated(part) for part in parts[:2])
        k = tape.put("mul", tokens * keys, k, rule="mul_constant")
        k_T = tape.put("copy", tokens * keys, tape.put("view", tokens * keys, k, rule="same"), rule="swap")
        v = tape.put("view", tokens * keys, parts[2], rule="same")
        q = tape.put("view", tokens * queries, q, rule="same")
        pairs = tokens * self.work.seq_len
        scores = self._bmm(pairs * shape.heads, q, k_T, pairs * queries)
        if shape.model_type == "gemma2":
            scores = self._soft_cap(scores)
        scores = tape.put("add", pairs * shape.heads, scores, rule="same")
        weights = tape.put("softmax", pairs * shape.heads, scores, rule="softmax")
        o = self._bmm(tokens * queries, weights, v, pairs * queries)
        o = tape.put("copy", tokens * queries, tape.put("view", tokens * queries, o, rule="same"), rule="swap")
        o = tape.put("view", tokens * queries, o, rule="same")
        return self._site(o, "o", trained)

    def _heads(self, part: int, name: str) -> int:
        """A copy with heads before tokens, normalised where the family does."""
        size = self.tape.size(part)
        viewed = self.tape.put("view", size, part, rule="same")
        has_norm = self.shape.family.has_qk_norms and name != "v"
        if has_norm:
            viewed = self._norm(viewed, size // self.shape.head_width)
        return self.tape.put("copy", size, viewed, rule="swap")

    def _rotated(self, x: int) -> int:
        """Rotary positions: two products with tables and one with a matrix that swaps halves."""
        tape, size, share = self.tape, self.tape.size(x), self.shape.family.rotary
        if not share:
            return x
        width = self.shape.head_width
        turned = round(size * share)
        part = x if share == 1 else self.product(x, width, round(width * share))
        cos = tape.put("mul", turned, part, rule="mul_constant")
        swapped = self.product(part, round(width * share), round(width * share))
        sin = tape.put("mul", turned, swapped, rule="mul_constant")
        total = tape.put("add", turned, cos, sin, rule="add")
        if share == 1:
            return total
        rest = self.product(x, width, width - round(width * share))
        return tape.put("cat", size, total, rest, rule="cat")

    def _mlp(self, x: int, trained: frozenset[str]) -> int:
        family, tape, size = self.shape.family, self.tape, self.tokens * self.shape.inner
        names = ("gate", "up") if family.is_gated else ("up",)
        low = self._shared_branch(x, names, trained)
        raised = self._activation(self._site(x, names[0], trained, low))
        if family.is_gated:
            up = self._site(x, "up", trained, low)
            raised = tape.put("mul", size, raised, up, rule="mul")
        return self._site(raised, "down", trained)

    def _activation(self, x: int) -> int:
        tape, size = self.tape, self.tape.size(x)
        if self.shape.activation == "silu":
            return tape.put("mul", size, x, tape.put("unary", size, x), rule="silu")
        if self.shape.activation == "gelu_tanh":
            half = tape.put("mul", size, x, rule="mul_constant")
            square = tape.put("mul", size, x, x, rule="mul")
            cube = tape.put("mul", size, square, x, rule="mul")
            inner = tape.put("add", size, x, tape.put("mul", size, cube, rule="mul_constant"), rule="add")
            bent = tape.put("unary", size, tape.put("mul", size, inner, rule="mul_constant"), rule="tanh")
            return tape.put("mul", size, half, tape.put("add", size, bent, rule="same"), rule="mul")
        return tape.put("unary", size, x, rule=self.shape.activation)

    def _post(self, x: int) -> int:
        return self.norm(x) if self.shape.family.has_post_norms else x

    def _norm(self, x: int, rows: int) -> int:
        tape, size = self.tape, self.tape.size(x)
        if self.shape.family.norm == "layer":
            mean = self.product(x, size // rows, 1)
            x = tape.put("sub", size, x, mean, rule="sub")
        square = tape.put("mul", size, x, x, rule="mul")
        mean = tape.put("add", rows, self.product(square, size // rows, 1), rule="same")
        root = tape.put("unary", rows, mean, rule="rsqrt")
        scaled = tape.put("mul", size, x, root, rule="mul")
        weighted = tape.put("mul", size, scaled, rule="mul_constant")
        return tape.put("add", size, weighted, rule="same") if self.shape.family.norm == "layer" else weighted

    def _soft_cap(self, x: int) -> int:
        tape, size = self.tape, self.tape.size(x)
        small = tape.put("mul", size, x, rule="mul_constant")
        return tape.put("mul", size, tape.put("unary", size, small, rule="tanh"), rule="mul_constant")

    def _shared_branch(self, x: int, names: tuple[str, ...], trained: frozenset[str]) -> int | None:
        """The product with A of a layer that is fused in the checkpoint."""
        if names not in self.shape.family.fused or not trained.issuperset(names):
            return None
        return self._low(x)

    def _low(self, x: int) -> int:
        return self.product(x, self.tape.size(x) // self.tokens, self.work.rank)

    def _site(self, x: int, name: str, trained: frozenset[str], low: int | None = None) -> int:
        """A frozen layer, with its branch where it is trained."""
        tape, layer = self.tape, self.shape.linear(name)
        y = self.linear(x, layer)
        if name not in trained:
            return y
        low = self._low(x) if low is None else low
        seen = tape.put("view", tape.size(low), low, rule="same")
        b = tape.put("external", self.work.rank * layer.outputs)
        self.sites.append(b)
        size = self.tokens * layer.outputs
        packed = self.work.copies * self.work.rank * layer.outputs * F32
        products = size * self.work.rank
        branch = tape.add(Op("bmm", size, (seen, b), "bmm", scratch_bytes=packed, multiplies_f32=products))
        viewed = tape.put("view", size, branch, rule="same")
        return tape.put("add", size, y, viewed, rule="add")

    def _bmm(self, elements: int, a: int, b: int, products: int) -> int:
        packed = self.tape.size(b) * F32
        return self.tape.add(Op("bmm", elements, (a, b), "bmm", scratch_bytes=packed, multiplies_f32=products))
