"""What is measured: one call of attention or of a module, its name, its useful work. Plain Python, no NumPy."""
from dataclasses import asdict, dataclass

MODES = ("full", "causal", "padded", "boolean", "bias")
BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class Attention:
    """softmax(Q K^T / sqrt(d_head)) V: q (B, n_heads, T_q, d_head), k and v (B, n_kv_heads, T_k, d_head), contiguous.

    padded   a boolean mask (B, 1, 1, T_k): the end of each sequence is hidden
    boolean  a boolean mask (T_q, T_k): a random quarter of the keys is hidden
    bias     a floating mask (bias_heads, T_q, T_k), added to the scores
    """
    B: int
    n_heads: int
    T_q: int
    T_k: int
    d_head: int
    mode: str = "full"
    dtype: str = "f32"
    n_kv_heads: int = 0  # 0: n_heads
    bias_heads: int = 1

    @property
    def kv_heads(self):
        return self.n_kv_heads or self.n_heads

    @property
    def label(self):
        """What is written before the sizes: decoding is one query over many keys."""
        return "decode" if self.T_q == 1 and self.T_k >= 512 else "attention"

    @property
    def name(self):
        words = [self.label, f"{self.B},{self.n_heads},{self.T_q},{self.T_k},{self.d_head}"]
        if self.kv_heads != self.n_heads:
            words.append(f"on {self.kv_heads}")
        if self.mode != "full":
            words.append(self.mode)
        return " ".join(words)

    @property
    def mask_shape(self):
        """Of the boolean or floating mask, four dims; None for modes without one."""
        return {"padded": (self.B, 1, 1, self.T_k), "boolean": (1, 1, self.T_q, self.T_k),
                "bias": (1, self.bias_heads, self.T_q, self.T_k)}.get(self.mode)

    @property
    def flops(self):
        """Useful ones: two products over the keys that a query sees under causal; masked keys count as seen."""
        pairs = self.T_q * self.T_k
        if self.mode == "causal":
            seen = min(self.T_q, self.T_k)  # queries past the last key see all of them
            pairs = seen * (seen + 1) // 2 + (self.T_q - seen) * self.T_k
        return 4 * self.B * self.n_heads * pairs * self.d_head

    @property
    def bytes(self):
        """Read or written once, whatever stays in caches; causal queries see T_q keys at most."""
        keys = min(self.T_q, self.T_k) if self.mode == "causal" else self.T_k
        rows = 2 * self.n_heads * self.T_q + 2 * self.kv_heads * keys
        return self.B * rows * self.d_head * BYTES[self.dtype]

    @property
    def limited_by_reads(self):
        return self.label == "decode"


@dataclass(frozen=True)
class AttentionTraining(Attention):
    """The same, and the gradients of q, k and v for a random one of the output."""

    @property
    def label(self):
        return "training"

    @property
    def flops(self):
        return super().flops * 7 // 2  # five more products


@dataclass(frozen=True)
class Module:
    """Self-attention of nn.MultiheadAttention in evaluation on x (B, T, embed_dim), with biases."""
    B: int
    T: int
    embed_dim: int
    n_heads: int
    weights: bool = False  # averaged over the heads
    dtype: str = "f32"

    limited_by_reads = False
    label = "module"

    @property
    def name(self):
        return f"module {self.B},{self.T},{self.embed_dim},{self.n_heads}" + (" weights" if self.weights else "")

    @property
    def flops(self):
        return self.B * self.T * (8 * self.embed_dim * self.embed_dim + 4 * self.T * self.embed_dim)


@dataclass(frozen=True)
class ModuleTraining(Module):
    """The same in training, and the gradients of x and of all parameters for a random one of the output."""

    @property
    def name(self):
        return "training " + super().name

    @property
    def flops(self):
        projections = 8 * self.B * self.T * self.embed_dim * self.embed_dim
        return 3 * projections + (super().flops - projections) * 7 // 2


@dataclass(frozen=True)
class TorchModel:
    """A call of something of PyTorch's, as contenders/models_contender.py builds it."""
    kind: str         # module, function, encoder layer, MiniLM
    size: tuple       # what the kind takes
    option: str = ""  # weights, padded, training
    folder: str = ""  # where MiniLM's files are

    dtype = "f32"

    @property
    def name(self):
        return f"{self.kind} {self.size} {self.option}".rstrip()

    @property
    def training(self):
        return self.option == "training"


def fields(case):
    """A case as the JSON lines show it."""
    return {"name": case.name, "kind": case.label, "flops": case.flops, **asdict(case)}
