#!/usr/bin/env python3
"""Train the demo's attention model on associative recall and save its weights.

A sequence is n pairs of a key (a letter) and a value (a digit), then one of the keys again:
"k3 d7 q0 d" asks for 7. Position i enters the layer as token_embedding[token i] +
previous_embedding[token i-1], so a digit's position knows its key and one attention layer can
solve the task; without attention a position sees two tokens and can only guess.

    layer  : multi-head attention, 4 heads, d_model 64, all biases, padding masked by length
    answer : argmax of unembedding . (attention output at the last position)

Usage: python3 examples/demo/train.py [-o FILE]     (needs torch==2.13.0 and safetensors)
The seed is fixed and one thread is used: a rerun on the same machine gives the same file.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

KEYS, VALUES = 26, 10
START = KEYS + VALUES  # what stands before the first token
VOCABULARY = START + 1
MIN_PAIRS, MAX_PAIRS = 4, 16
SEQ_LEN = 2 * MAX_PAIRS + 1
D_MODEL, HEADS = 64, 4
HEAD_DIM = D_MODEL // HEADS

SEED = 1
STEPS = 1200
BATCH = 256
PEAK_RATE = 3e-3
WEIGHT_DECAY = 0.01


def draw_batch(size: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return tokens [B,SEQ_LEN], the tokens before them, lengths [B] and answers [B]."""
    pairs = torch.randint(MIN_PAIRS, MAX_PAIRS + 1, (size,), generator=rng)
    keys = torch.rand(size, KEYS, generator=rng).argsort(dim=1)[:, :MAX_PAIRS]  # all different
    values = torch.randint(VALUES, (size, MAX_PAIRS), generator=rng)
    asked = (torch.rand(size, generator=rng) * pairs).long()

    rows = torch.arange(size)
    tokens = torch.zeros(size, SEQ_LEN, dtype=torch.long)
    tokens[:, 0:-1:2] = keys
    tokens[:, 1:-1:2] = KEYS + values
    tokens[rows, 2 * pairs] = keys[rows, asked]
    before = torch.full_like(tokens, START)
    before[:, 1:] = tokens[:, :-1]
    return tokens, before, 2 * pairs + 1, values[rows, asked]


def new_weights(rng: torch.Generator) -> dict[str, Tensor]:
    """Random weights under the names the attngen runtime and the demo read."""
    shapes = {
        "token_embedding.weight": (VOCABULARY, D_MODEL),
        "previous_embedding.weight": (VOCABULARY, D_MODEL),
        "q.weight": (D_MODEL, D_MODEL),
        "k.weight": (D_MODEL, D_MODEL),
        "v.weight": (D_MODEL, D_MODEL),
        "o.weight": (D_MODEL, D_MODEL),
        "unembedding.weight": (VALUES, D_MODEL),
    }
    weights = {name: torch.randn(shape, generator=rng) * D_MODEL**-0.5
               for name, shape in shapes.items()}
    weights |= {f"{name}.bias": torch.zeros(D_MODEL) for name in "qkvo"}
    return weights


def attend(w: dict[str, Tensor], x: Tensor, lengths: Tensor) -> Tensor:
    """The attention layer that attngen generates a kernel for: [B,L,E] -> [B,L,E]."""
    batch, seq_len, _ = x.shape

    def project(name: str) -> Tensor:
        y = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        return y.view(batch, seq_len, HEADS, HEAD_DIM).transpose(1, 2)

    scores = project("q") @ project("k").transpose(2, 3) * HEAD_DIM**-0.5
    padded = torch.arange(seq_len) >= lengths[:, None]
    weights = scores.masked_fill(padded[:, None, None, :], -torch.inf).softmax(dim=3)
    heads = (weights @ project("v")).transpose(1, 2).reshape(batch, seq_len, D_MODEL)
    return heads @ w["o.weight"].T + w["o.bias"]


def answer_logits(w: dict[str, Tensor], tokens: Tensor, before: Tensor, lengths: Tensor) -> Tensor:
    """Logits [B,VALUES] of the answer, read at each sequence's last position."""
    x = w["token_embedding.weight"][tokens] + w["previous_embedding.weight"][before]
    y = attend(w, x, lengths)
    return y[torch.arange(len(y)), lengths - 1] @ w["unembedding.weight"].T


def train(rng: torch.Generator) -> dict[str, Tensor]:
    """AdamW with a one-cycle rate on fresh random sequences every step."""
    weights = new_weights(rng)
    for tensor in weights.values():
        tensor.requires_grad_()
    optimizer = torch.optim.AdamW(weights.values(), lr=PEAK_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=STEPS)
    for step in range(1, STEPS + 1):
        tokens, before, lengths, answers = draw_batch(BATCH, rng)
        loss = cross_entropy(answer_logits(weights, tokens, before, lengths), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    return {name: tensor.detach().contiguous() for name, tensor in weights.items()}


@torch.no_grad()
def accuracy(weights: dict[str, Tensor], count: int, rng: torch.Generator) -> float:
    """Share of right answers over `count` fresh sequences."""
    tokens, before, lengths, answers = draw_batch(count, rng)
    guesses = answer_logits(weights, tokens, before, lengths).argmax(dim=1)
    return (guesses == answers).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path,
                        default=Path(__file__).with_name("recall.safetensors"))
    output = parser.parse_args().output

    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(SEED)
    weights = train(rng)
    print(f"accuracy on 10000 fresh sequences: {accuracy(weights, 10000, rng):.2%}")
    save_file(weights, output)
    print(f"{output}: {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
