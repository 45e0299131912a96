"""The grid of shapes that no kernel was tuned for, and a sample of it in which every value of each axis occurs."""
import itertools
import random

from cases import MODES, Attention

T = (1, 7, 16, 33, 128, 197, 577, 1024, 1500, 4096)
D_HEAD = (8, 32, 40, 64, 80, 96, 128, 256)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
BATCH = (1, 2)
AXES = (T, T, D_HEAD, HEADS, MODES, BATCH, (False, True))  # the last: a bias for each head, or one for all


def _case(T_q, T_k, d_head, n_heads, mode, B, bias_each, dtype):
    bias_heads = n_heads if mode == "bias" and bias_each else 1
    return Attention(B, n_heads, T_q, T_k, d_head, mode, dtype, bias_heads=bias_heads)


def _work(case):
    """FLOPs a peer may spend, which computes what is masked too."""
    return 4 * case.B * case.n_heads * case.T_q * case.T_k * case.d_head


def capped(case, max_flops):
    """With fewer sequences and heads, where the whole would be more than that; one head is always left."""
    B, heads = case.B, case.n_heads
    while _work(case) > max_flops and (B, heads) != (1, 1):
        B, heads = (1, heads) if B > 1 else (1, max(h for h in HEADS if h < heads))
        case = _case(case.T_q, case.T_k, case.d_head, heads, case.mode, B, case.bias_heads > 1, case.dtype)
    return case


def _shuffled_column(axis, n, rng):
    """n values of an axis, each as often as the others give or take one."""
    values = []
    while len(values) < n:
        values += rng.sample(axis, len(axis))
    rng.shuffle(values := values[:n])
    return values


def sample(n, seed, dtype="f32", max_flops=20e9):
    """n cases, the same for the same arguments; all different unless capping has made two alike."""
    rng = random.Random(seed)
    columns = [_shuffled_column(axis, n, rng) for axis in AXES]
    return [capped(_case(*row, dtype), max_flops) for row in zip(*columns)]


def full(dtype="f32"):
    """The whole product, one sequence; biases the same for all heads."""
    return [_case(*row, 1, False, dtype) for row in itertools.product(*AXES[:5])]
