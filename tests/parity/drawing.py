"""What both kinds of cases draw: sizes, dtypes, values, memory layouts and masks. All from one random.Random and torch's
generator, so that a case depends on the seed and its number only."""
import numpy as np
import torch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
NEG_INF = float("-inf")

# Odd sizes on purpose: nothing, one, one past a vector, one past each block.
SMALL_LENGTHS = [0] + [1, 2, 3, 3, 4, 5, 7] * 3 + [9, 17]
LENGTHS = SMALL_LENGTHS + [16, 17, 31, 33, 64, 65, 65, 100, 129]
LONG_LENGTHS = [257, 511, 513, 700, 1030]  # past a leaf of 512 keys
SMALL_WIDTHS = [1, 2, 3, 4, 5, 8]
WIDTHS = SMALL_WIDTHS + [7, 15, 16, 17, 32, 33, 64, 65, 80]


def values(shape, dtype, factor=1.0, offset=0.0):
    return (torch.randn(shape, dtype=torch.float64) * factor + offset).to(dtype)


def repeat_along_a_dim(rng, x):
    """Sometimes equal along one dim, so that layout() can give it a stride of 0. Returns the dim."""
    if x.dim() == 0 or x.numel() == 0 or rng.random() > 0.08:
        return None
    dim = rng.randrange(x.dim())
    x[:] = x.narrow(dim, 0, 1).clone()
    return dim


def layout(rng, rank, repeated=None):
    """How a tensor lies in memory: order of dims, outermost first; elements between neighbours of each dim; elements
    left over at the end of each. The runner builds it; '' is contiguous."""
    choice = rng.random()
    if rank == 0 or (choice < 0.4 and repeated is None):
        return ""
    order, steps, pads = list(range(rank)), [1] * rank, [0] * rank
    if choice < 0.7 and rank >= 3:  # another order of the outer dims, the last one contiguous: (B, T, H, D)
        outer = order[:-1]
        rng.shuffle(outer)
        order = outer + order[-1:]
    elif choice < 0.8:
        rng.shuffle(order)
    if rng.random() < 0.5:
        pads[-1] = rng.choice([1, 3, 8])
    if rng.random() < 0.25:
        steps[rng.randrange(rank)] = rng.choice([2, 3, -1, -2])
    if repeated is not None:
        steps[repeated] = 0
    return "/".join(",".join(map(str, x)) for x in (order, steps, pads))


def mask_values(rng, shape, kind, dtype):
    """Some keys hidden, sometimes whole rows or whole columns; a bias adds something to the others."""
    density = rng.choice([0.0, 0.2, 0.5, 0.9])
    hidden = torch.rand(shape) < density
    if hidden.numel() and rng.random() < 0.3:  # whole columns, as padding does
        hidden |= torch.rand(shape[-1]) < 0.4
    if hidden.numel() and len(shape) >= 2 and rng.random() < 0.3:  # whole rows: no key allowed
        hidden |= torch.rand((*shape[:-1], 1)) < 0.3
    if kind == "ignore":
        return hidden
    if kind == "keep":
        return ~hidden
    if rng.random() < 0.2:  # a plain bias that hides nothing
        return values(shape, dtype)
    instead = NEG_INF
    if rng.random() < 0.2 and dtype != torch.float16:
        # A whole row of it is ordinary arithmetic: every score drowns. (In f16 it's small enough not to drown, and
        # loses the score's lower digits.)
        instead = torch.finfo(dtype).min
    return values(shape, dtype).masked_fill(hidden, instead)


def round_to(x, dtype):
    """float64 to the nearest 16-bit value, ties to even, in one rounding (torch goes through float32)."""
    if dtype == torch.float16:
        with np.errstate(over="ignore"):
            return torch.from_numpy(x.numpy().astype(np.float16))
    bits = x.contiguous().view(torch.int64)
    dropped = 52 - 7
    rounded = bits + (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1)
    rounded = (rounded >> dropped) << dropped
    y = torch.where(torch.isfinite(x), rounded.view(torch.float64), x)
    tiny = x.abs() < 2.0**-126  # subnormal: a fixed step of 2^-133
    return torch.where(tiny, torch.round(x * 2.0**133) * 2.0**-133, y).to(torch.bfloat16)


def expectation(x, dtype):
    """As it is kept in the file: 16-bit results correctly rounded, the others in double."""
    return round_to(x, dtype) if dtype in (torch.bfloat16, torch.float16) else x.double()


class Case:
    """Options as text and tensors by name; torch_checked: torch's own function gave the same."""

    def __init__(self, kind, dtype_name):
        self.options = {"kind": kind, "dtype": dtype_name}
        self.tensors = {}
        self.torch_checked = False

    def put(self, name, tensor, how=""):
        self.tensors[name] = tensor.contiguous()
        if how:
            self.options[f"{name}_layout"] = how

    def text(self):
        return " ".join(f"{k}={v}" for k, v in {**self.options, "torch": int(self.torch_checked)}.items())


def agree(ours, torchs, where):
    """Both in float64: differences of a few roundings only."""
    if ours.shape != torchs.shape:
        raise AssertionError(f"{where}: shape {tuple(ours.shape)} here, {tuple(torchs.shape)} from torch")
    if not torch.allclose(ours, torchs, rtol=1e-9, atol=1e-11):
        raise AssertionError(f"{where}: differs from torch by {(ours - torchs).abs().max().item()}")
