"""The operations of a decoder's forward, in the order and the form in which the compiler leaves them to XNNPACK.

Letters: N rows, T tokens, R = N*T, D width, H query heads, G heads to a key head, d width of a head, r rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from prgec.compiler.plan.families import GATE_UP, QKV
from prgec.compiler.plan.op import F32, Op
from prgec.compiler.plan.shape import Linear, ModelShape
from prgec.compiler.plan.tape import Tape
from prgec.compiler.plan.workload import Workload


@dataclass
class Forward:
    """Writes the forward of one model onto a tape.

    Attributes:
        tape: Where it is written.
        shape: The model.
        work: How it is trained.
        rows: N of what is written next.
        sites: Reads of B, in order.
        writes: Values added to the residual stream, in order.
        stream: The stream after each of its sums, in order.
    """

    tape: Tape
    shape: ModelShape
    work: Workload
    rows: int

    def __post_init__(self) -> None:
        self.sites: list[int] = []
        self.writes: list[int] = []
        self.stream: list[int] = []
        self._narrow: dict[int, int] = {}

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
            written = tape.put("add", width, raised, attended, rule="add")
            return self._sum(written, stream)
        middle = self._sum(stream, attended)
        raised = self._post(self._mlp(self.norm(middle), trained))
        self.writes += [attended, raised]
        return self._sum(middle, raised)

    def norm(self, x: int) -> int:
        """RMSNorm or LayerNorm over the last dimension, with its means as products with a constant."""
        return self._norm(x, self.tape.size(x) // self.shape.width)

    def head(self, stream: int) -> int:
        """Last norm, label positions, logits."""
        picked = self.at_labels(self.norm(stream))
        logits = self.linear(picked, Linear("head", self.shape.width, self.shape.vocab))
        self.tape.keep(logits)
        return logits

    def at_labels(self, x: int) -> int:
        """Label positions of a value as wide as the stream, chosen by a product with one-hot rows."""
        chosen = self.rows * self.work.num_labels
        one_hot = self.tape.put("external", chosen * self.work.seq_len)
        return self.tape.bmm(chosen * self.shape.width, one_hot, x, chosen * self.work.seq_len * self.shape.width)

    def linear(self, x: int, layer: Linear) -> int:
        """A frozen layer; one that is quantised reads its input as int8."""
        tape = self.tape
        tokens = tape.size(x) // layer.inputs
        is_narrow = self.work.is_quantized and self.work.weight_bytes(layer.inputs) < F32
        products = tokens * layer.weights
        source = x
        if is_narrow:
            # Layers that read the same value share its copy in 8 bits.
            source = self._narrow.setdefault(x, len(tape.ops))
            if source == len(tape.ops):
                tape.add(Op("convert", tape.size(x), (x,), element_bytes=1))
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

    def _sum(self, first: int, second: int) -> int:
        """The stream after a write."""
        self.stream.append(self.tape.put("add", self.tape.size(first), first, second, rule="add"))
        return self.stream[-1]

    def _attention(self, x: int, trained: frozenset[str]) -> int:
        """Queries, keys and values, softmax, and the layer after them."""
        shape, tape, tokens = self.shape, self.tape, self.tokens
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        parts = self._projected(x, trained)
        turned = [self._rotated(pieces) for pieces in parts[:2]]
        q, k = (self._joined(first, pieces) for first, pieces in zip(turned, parts, strict=False))
        k = tape.put("mul", tokens * keys, k, rule="mul_constant")
        k = tape.put("view", tokens * keys, k, rule="same")
        v = tape.put("view", tokens * keys, parts[2][0], rule="same")
        q = tape.put("view", tokens * queries, q, rule="same")
        k_T = tape.put("transpose", tokens * keys, k, rule="swap")
        pairs = tokens * self.work.seq_len
        scores = self.tape.bmm(pairs * shape.heads, q, k_T, pairs * queries)
        if shape.model_type == "gemma2":
            scores = self._soft_cap(scores)
        scores = tape.put("add", pairs * shape.heads, scores, rule="same")
        weights = tape.put("softmax", pairs * shape.heads, scores, rule="softmax")
        o = self.tape.bmm(tokens * queries, weights, v, pairs * queries)
        o = tape.put("copy", tokens * queries, tape.put("view", tokens * queries, o, rule="same"), rule="swap")
        o = tape.put("view", tokens * queries, o, rule="same")
        return self._site(o, shape.linear("o"), trained)

    def _projected(self, x: int, trained: frozenset[str]) -> list[list[int]]:
        """Queries, keys and values, heads first; the first two in a share that is rotated and a rest, if any."""
        family, share = self.shape.family, self.shape.family.rotary
        layers = [self.shape.linear(name) for name in QKV]
        is_fused = QKV in family.fused
        if is_fused and self.work.has_gradients and trained.issuperset(QKV):
            return self._cut(self._whole(x, layers), layers)
        low = self._low(x) if is_fused and trained.issuperset(QKV) else None
        shares = {name: (share, 1 - share) if 0 < share < 1 and name != "v" else (1,) for name in QKV}
        pieces = [[(layer, part) for part in shares[layer.name]] for layer in layers]
        return [
            [
                self._heads(
                    self._site(x, replace(layer, outputs=round(layer.outputs * part)), trained, low), layer.name
                )
                for layer, part in each
            ]
            for each in pieces
        ]

    def _whole(self, x: int, layers: list[Linear]) -> int:
        """A fused layer that gradients go through: its branch keeps it from being split."""
        total = sum(layer.outputs for layer in layers)
        return self._site(x, Linear(layers[0].name, layers[0].inputs, total), frozenset({layers[0].name}))

    def _cut(self, whole: int, layers: list[Linear]) -> list[list[int]]:
        """Parts of a fused layer as products with matrices that choose; in some families each head has its three."""
        width, share = self.shape.head_width, self.shape.family.rotary
        if not self.shape.family.is_fused_by_head:
            total = sum(layer.outputs for layer in layers)
            return [[self._heads(self.product(whole, total, each.outputs), each.name)] for each in layers]
        whole = self._heads(whole, "v")
        parts = [self.product(whole, len(layers) * width, width) for _ in layers]
        turned = round(width * share)
        if not 0 < share < 1:
            return [[part] for part in parts]
        pairs = [[self.product(part, width, turned), self.product(part, width, width - turned)] for part in parts[:2]]
        return [*pairs, parts[2:]]

    def _heads(self, part: int, name: str) -> int:
        """A copy with heads before tokens, normalised where the family does."""
        size = self.tape.size(part)
        viewed = self.tape.put("view", size, part, rule="same")
        has_norm = self.shape.family.has_qk_norms and name != "v"
        if has_norm:
            viewed = self._norm(viewed, size // self.shape.head_width)
        return self.tape.put("copy", size, viewed, rule="swap")

    def _rotated(self, pieces: list[int]) -> int:
        """Rotary positions of the first piece: two products with tables and one with a matrix that swaps halves."""
        share, first = self.shape.family.rotary, pieces[0]
        if not share:
            return first
        tape, size, width = self.tape, self.tape.size(first), round(self.shape.head_width * share)
        cos = tape.put("mul", size, first, rule="mul_constant")
        sin = tape.put("mul", size, self.product(first, width, width), rule="mul_constant")
        return tape.put("add", size, cos, sin, rule="add")

    def _joined(self, turned: int, pieces: list[int]) -> int:
        """The rotated share joined with the rest."""
        if len(pieces) == 1:
            return turned
        return self.tape.put("cat", self.tape.size(turned) + self.tape.size(pieces[1]), turned, pieces[1], rule="cat")

    def _mlp(self, x: int, trained: frozenset[str]) -> int:
        family, tape, size = self.shape.family, self.tape, self.tokens * self.shape.inner
        if family.is_gated:
            gate, up = self._gate_and_up(x, trained)
            raised = tape.put("mul", size, self._activation(gate()), up(), rule="mul")
        else:
            raised = self._activation(self._site(x, self.shape.linear("up"), trained))
        return self._site(raised, self.shape.linear("down"), trained)

    def _gate_and_up(self, x: int, trained: frozenset[str]) -> tuple[Callable[[], int], Callable[[], int]]:
        """The two halves of a gated MLP, each written on its first use."""
        layers = [self.shape.linear(name) for name in GATE_UP]
        is_fused = GATE_UP in self.shape.family.fused and trained.issuperset(GATE_UP)
        if is_fused and self.work.has_gradients:
            whole = self._whole(x, layers)
            total = sum(layer.outputs for layer in layers)
            halves = [functools.partial(self.product, whole, total, layer.outputs) for layer in layers]
        else:
            low = self._low(x) if is_fused else None
            halves = [functools.partial(self._site, x, layer, trained, low) for layer in layers]
        return halves[0], halves[1]

    def _activation(self, x: int) -> int:
        tape, size = self.tape, self.tape.size(x)
        if self.shape.activation == "silu":
            return tape.put("mul", size, x, tape.put("unary", size, x), rule="silu")
        if self.shape.activation == "gelu_tanh":
            square = tape.put("mul", size, x, x, rule="mul")
            cube = tape.put("mul", size, square, x, rule="mul")
            inner = tape.put("add", size, x, tape.put("mul", size, cube, rule="mul_constant"), rule="add")
            bent = tape.put("unary", size, tape.put("mul", size, inner, rule="mul_constant"), rule="tanh")
            half = tape.put("mul", size, x, rule="mul_constant")
            return tape.put("mul", size, half, tape.put("add", size, bent, rule="same"), rule="mul")
        return tape.put("unary", size, x, rule=self.shape.activation)

    def _post(self, x: int) -> int:
        return self.norm(x) if self.shape.family.has_post_norms else x

    def _norm(self, x: int, rows: int) -> int:
        tape, size = self.tape, self.tape.size(x)
        if self.shape.family.norm == "layer":
            mean = self.product(x, size // rows, 1)
            x = tape.put("sub", size, x, mean, rule="sub")
        square = tape.put("unary", size, x, rule="square")
        mean = tape.put("add", rows, self.product(square, size // rows, 1), rule="same")
        root = tape.put("unary", rows, mean, rule="rsqrt")
        scaled = tape.put("mul", size, x, root, rule="mul")
        weighted = tape.put("mul", size, scaled, rule="mul_constant")
        return tape.put("add", size, weighted, rule="same") if self.shape.family.norm == "layer" else weighted

    def _soft_cap(self, x: int) -> int:
        tape, size = self.tape, self.tape.size(x)
        small = tape.put("mul", size, x, rule="mul_constant")
        return tape.put("mul", size, tape.put("unary", size, small, rule="tanh"), rule="mul_constant")

    def _low(self, x: int) -> int:
        return self.product(x, self.tape.size(x) // self.tokens, self.work.rank)

    def _copies(self, size: int) -> int:
        """The second factor of branches: a perturbation becomes copies of B where they are read."""
        tape, copied = self.tape, self.work.copies * size
        if self.work.has_gradients or self.work.state != "seeded":
            return tape.put("external", copied)
        moves = tape.put("mul", copied, tape.put("external", self.work.q * size))
        moved = tape.put("add", copied, moves, tape.put("external", size))
        return tape.put("view", copied, moved, rule="same")

    def _site(self, x: int, layer: Linear, trained: frozenset[str], low: int | None = None) -> int:
        """A frozen layer, with its branch where it is trained."""
        tape = self.tape
        y = self.linear(x, layer)
        if layer.name not in trained:
            return y
        low = self._low(x) if low is None else low
        seen = tape.put("view", tape.size(low), low, rule="same")
        b = self._copies(self.work.rank * layer.outputs)
        self.sites.append(b)
        if self.work.has_gradients:
            # One B for all rows comes as a matrix, and the product wants a batch of one: a copy inside the arena.
            b = tape.put("view", tape.size(b), b, rule="same")
        size = self.tokens * layer.outputs
        branch = tape.bmm(size, seen, b, size * self.work.rank)
        # Rows and tokens are split in one view and named in another.
        viewed = tape.put("view", size, tape.put("view", size, branch, rule="same"), rule="same")
        return tape.put("add", size, y, viewed, rule="add")
