"""What an attention layer computes, read from the resolved config in a bundle's manifest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Keys that say how a kernel is made, not what it computes.
HOW_KEYS = {"name", "isa", "unroll", "code_budget", "plan", "target", "accuracy", "empty_row"}
WHAT_KEYS = {
    "op", "batch", "seq_len", "kv_len", "d_model", "kv_dim", "heads", "kv_heads", "head_dim",
    "v_head_dim", "bias", "scale", "mask", "causal_align", "cross", "kv_cache",
    "output_projection", "padded_queries",
}
OFF = (None, False, "none", "all", "off", "f32", [], {})


class Unsupported(Exception):
    """The layer, or a part of it, cannot be expressed here; the text says which part."""


@dataclass(frozen=True)
class Problem:
    """Sizes as in docs/config.md. `lengths` holds the valid keys of each batch item, new tokens of
    a cache included; `causal_shift` is None without a causal mask, else query i sees keys up to
    i + causal_shift (plus lengths[b] - seq_len when `causal_by_lengths`)."""

    name: str
    batch: int
    seq_len: int
    kv_len: int
    d_model: int
    kv_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    biases: dict[str, bool]
    causal_shift: int | None
    causal_by_lengths: bool
    takes_lengths: bool
    lengths: tuple[int, ...]
    cross: bool
    kv_cache: str | None
    zero_padded: bool
    output_projection: bool
    flops: float = field(default=0.0, compare=False)

    # -- derived ------------------------------------------------------------------------------

    @property
    def self_attention(self) -> bool:
        """K and V are projected from the same rows as Q."""
        return not self.cross and self.kv_cache != "static"

    @property
    def projects_kv(self) -> bool:
        return self.kv_cache != "static"

    @property
    def past(self) -> tuple[str, ...]:
        """The names of the tensors that hold a cache's tokens, as in attn_args."""
        return {None: (), "static": ("k", "v"), "append": ("k_cache", "v_cache")}[self.kv_cache]

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def k_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def v_width(self) -> int:
        return self.kv_heads * self.v_head_dim

    @property
    def context_width(self) -> int:
        return self.heads * self.v_head_dim

    @property
    def y_shape(self) -> tuple[int, int, int]:
        width = self.d_model if self.output_projection else self.context_width
        return (self.batch, self.seq_len, width)

    @property
    def causal(self) -> bool:
        return self.causal_shift is not None

    @property
    def plainly_causal(self) -> bool:
        """The mask that libraries call causal: square, nothing but the diagonal."""
        return self.causal_shift == 0 and not self.causal_by_lengths and self.full

    @property
    def full(self) -> bool:
        """Every key of every item is valid."""
        return all(length == self.kv_len for length in self.lengths)

    @property
    def total(self) -> int:
        """Keys that exist, for a cache: equal for all items."""
        return self.lengths[0]

    def last_key(self, item: int, query: int) -> int:
        """Keys up to this one (exclusive) are visible to the query."""
        end = self.lengths[item]
        if self.causal_shift is not None:
            shift = self.causal_shift
            if self.causal_by_lengths:
                shift += self.lengths[item] - self.seq_len
            end = min(end, query + shift + 1)
        return max(end, 0)

    def masks_anything(self) -> bool:
        """Whether any query misses any of the kv_len keys."""
        return any(self.last_key(b, i) < self.kv_len
                   for b in range(self.batch) for i in range(self.seq_len))

    def rows_compared(self) -> list[tuple[int, int]]:
        """(first, last) rows of y, item by item, whose contents every contender agrees on."""
        rows = []
        for item, length in enumerate(self.lengths):
            count = min(self.seq_len, length) if self.zero_padded else self.seq_len
            rows.append((item * self.seq_len, item * self.seq_len + count))
        return rows


def mask_names(mask: object) -> list[str]:
    """The mask key as a list of names; tables (windows) and functions are refused."""
    parts = mask if isinstance(mask, list) else [mask or "none"]
    for part in parts:
        if not isinstance(part, str):
            raise Unsupported(f"mask {part!r}")
    return [part for part in parts if part != "none"]


def causal_of(config: dict, masks: list[str], seq_len: int,
              kv_len: int) -> tuple[int | None, bool]:
    """(causal_shift, causal_by_lengths) of a config."""
    if "causal" not in masks:
        return None, False
    align = config.get("causal_align")
    if config.get("kv_cache") == "append" and align is None:
        return 0, True
    if align == "lengths":
        return 0, True
    if align == "bottom_right":
        return kv_len - seq_len, False
    if isinstance(align, (int, float)) and not isinstance(align, bool):
        return int(align), False
    return 0, False


def from_config(config: dict, fill: float = 1.0, flops: float = 0.0) -> Problem:
    """The problem of a resolved config; `fill` is the valid share of the keys where the kernel
    takes lengths. Raises Unsupported, naming the key, for what this module does not model."""
    for key, value in sorted(config.items()):
        if key not in HOW_KEYS and key not in WHAT_KEYS and value not in OFF:
            raise Unsupported(f"{key} = {value!r}")
    if config.get("op", "mha") != "mha":
        raise Unsupported(f"op = {config['op']!r}: whole layers only")
    masks = mask_names(config.get("mask"))
    for name in masks:
        if name not in ("causal", "lengths"):
            raise Unsupported(f"mask = {name!r}")
    batch, seq_len = config.get("batch", 1), config["seq_len"]
    kv_len = config.get("kv_len") or seq_len
    cache = config.get("kv_cache") or None
    cache = None if cache in OFF else cache
    if cache not in (None, "append", "static"):
        raise Unsupported(f"kv_cache = {cache!r}")
    shift, by_lengths = causal_of(config, masks, seq_len, kv_len)
    if cache == "append" and shift is None:
        shift, by_lengths = 0, True  # a new token never sees a later one
    heads = config["heads"]
    head_dim = config.get("head_dim") or config["d_model"] // heads
    bias = config.get("bias", True)
    if not isinstance(bias, dict):
        bias = {name: bool(bias) for name in "qkvo"}
    takes_lengths = "lengths" in masks or cache == "append"
    length = max(seq_len, math.ceil(fill * kv_len)) if cache else max(1, math.ceil(fill * kv_len))
    return Problem(
        name=config.get("name", "layer"), batch=batch, seq_len=seq_len, kv_len=kv_len,
        d_model=config["d_model"], kv_dim=config.get("kv_dim") or config["d_model"],
        heads=heads, kv_heads=config.get("kv_heads") or heads, head_dim=head_dim,
        v_head_dim=config.get("v_head_dim") or head_dim,
        scale=float(config.get("scale") or 1.0 / math.sqrt(head_dim)),
        biases={name: bool(bias.get(name, True)) for name in "qkvo"},
        causal_shift=shift, causal_by_lengths=by_lengths, takes_lengths=takes_lengths,
        lengths=(length if takes_lengths else kv_len,) * batch,
        cross=bool(config.get("cross")), kv_cache=cache,
        zero_padded=config.get("padded_queries") == "zero",
        output_projection=config.get("output_projection", True) is not False, flops=flops)
