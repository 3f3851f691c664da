"""Trains a program of `prgec compile --state host` with nothing but NumPy and a stock ExecuTorch (docs/contract.md).

    prgec compile demo --state host --method exact --optimizer norm --batch-size 16 --seq-len 64 -o m.pte
    (or --method prge alone in place of --method exact --optimizer norm)
    prgec tokenize m.pte train.jsonl -o train.bin && prgec tokenize m.pte test.jsonl -o test.bin
    python host_driver.py m.pte train.bin test.bin 150 b.npz

Letters: N rows of a call, B examples, q queries, T tokens, K label positions.
"""

import json
import sys

import numpy as np
import torch  # ExecuTorch's Python runtime takes tensors of torch
from executorch.runtime import Runtime

PROGRAM, TRAIN, TEST, STEPS, OUT = sys.argv[1:]
SEED, LR, EPS = 0, 3e-3, 1e-2
program = Runtime.get().load_program(PROGRAM)
m = json.loads(program.load_method("prgec_manifest").execute([])[0])
is_prge, B, q, K = m["method"] == "prge", m["batch_size"], m["q"], m["num_labels"]
if m["state"] != "host" or m["prefix"] != "none" or m["optimizer"] not in ("", "norm"):
    sys.exit("error: compile the program with --state host, --prefix none and --optimizer norm")
copies = 2 * q if is_prge else 1
forward = program.load_method("forward")
evaluate = forward if is_prge else program.load_method("evaluate")
state = [np.zeros((m["rank"], site["out_features"]), np.float32) for site in m["sites"]]  # all there is to save
running = np.zeros(2)  # what keeps steps of one length: a mean of squares, and its weight


def read_rows(path):
    """Return rows by example and candidate, each as tokens, label positions and targets, and the right candidates."""
    data = np.fromfile(path, "<u4")
    count, candidates = data[6:8]
    places, values = np.split(data[24 + count :].astype(np.int64), [count * candidates + 1])
    rows = [np.split(values[a + 2 : b], np.cumsum(values[a : a + 2])) for a, b in zip(places, places[1:])]
    return [rows[i : i + candidates] for i in range(0, len(rows), candidates)], data[24 : 24 + count]


def call(method, rows, weights):
    """Run a method over rows, padded, with the weights of every site after them."""
    T = max(2, *(len(tokens) for tokens, _, _ in rows)) if m["dynamic_seq_len"] else m["seq_len"]
    inputs = zip(zip(*rows), (T, K, K), (m["pad_token_id"], 0, -100))
    inputs = [np.stack([np.pad(v, (0, n - len(v)), constant_values=x) for v in column]) for column, n, x in inputs]
    return [each.numpy() for each in method.execute([torch.from_numpy(each) for each in (*inputs, *weights)])]


def normalised(total, count, decay):
    """Return 1 / the running root of the mean of `count` squares whose sum is `total`."""
    running[:] = decay * running + (1 - decay) * np.array([total / count, 1.0])
    return 1 / (np.sqrt(running[0] / running[1]) + 1e-12)


def step_by_losses(rows, lr, step):
    """Measure under 2q perturbed copies; move along each direction by the slope of the loss. Any noise will do."""
    noise = np.random.Generator(np.random.Philox(key=[SEED, step]))
    z = [noise.standard_normal((q, *b.shape), np.float32) for b in state]
    pairs = [np.stack([b + EPS * z_q, b - EPS * z_q], 1).reshape(2 * q, *b.shape) for b, z_q in zip(state, z)]
    loss = call(forward, rows * copies, pairs)[0].astype(np.float64).reshape(q, 2, B).mean(2)
    g = (loss[:, 0] - loss[:, 1]) / (2 * EPS)
    g *= np.sqrt(q) * normalised((g * g).sum(), q, 0.99)
    for b, z_q in zip(state, z):
        b -= np.float32(lr / q) * np.einsum("q,qro->ro", g.astype(np.float32), z_q)
    return loss.mean()


def step_by_gradient(rows, lr, step):
    """Let the program differentiate; move by lr in root mean square, but no further than lowers the loss by a fifth."""
    loss, *gradients = call(forward, rows, state)
    total = sum(float(np.vdot(each, each)) for each in gradients)
    if np.isfinite(total) and np.isfinite(loss).all():
        scale = normalised(total, sum(each.size for each in gradients), m["update"]["beta2"])
        scale = min(scale, m["update"]["polyak"] * loss.mean() / max(lr * total, 1e-30))
        for b, gradient in zip(state, gradients):
            b -= np.float32(lr * scale) * gradient
    return loss.mean()


def accuracy(path):
    """Return the share of examples whose right candidate has the lowest loss."""
    examples, answers = read_rows(path)
    rows, N = [row for example in examples for row in example], copies * B
    weights = [np.tile(b, (copies, 1, 1)) if is_prge else b for b in state]
    calls = [(rows[i : i + N] + rows[:1] * N)[:N] for i in range(0, len(rows), N)]
    losses = np.concatenate([call(evaluate, part, weights)[0] for part in calls])[: len(rows)]
    return (losses.reshape(len(examples), -1).argmin(1) == answers).mean()


(examples, answers), order, before = read_rows(TRAIN), np.random.default_rng(SEED), accuracy(TEST)
for step in range(1, int(STEPS) + 1):
    chosen = [examples[i][answers[i]] for i in order.choice(len(examples), B, replace=False)]
    loss = (step_by_losses if is_prge else step_by_gradient)(chosen, LR * (1 - (step - 1) / int(STEPS)), step)
    print(f"step {step} loss {loss:.4f}", file=sys.stderr)
np.savez(OUT, **{site["name"] + ".lora_B": b for site, b in zip(m["sites"], state)})
print(f"accuracy {before:.3f} -> {accuracy(TEST):.3f}")
