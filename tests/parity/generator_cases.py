"""Cases of the generator: draws one after the other, each from where the one before left it."""
import torch

from drawing import DTYPES, Case

SIZES = [0, 1, 2, 5, 15, 16, 17, 31, 32, 33, 100]


def make(rng, small):
    case = Case("draws", "mixed")
    case.options["seed"] = rng.choice([0, 1, 2**32 - 1, 2**32 + 5, rng.getrandbits(63)])
    torch.manual_seed(case.options["seed"])
    steps = []
    for number in range(rng.randint(1, 8)):
        kind, dtype_name = rng.choice(["uniform", "normal", "randn"]), rng.choice(list(DTYPES))
        size = rng.choice(SIZES if small else SIZES + [1000, 4097])
        a, b = {"uniform": (-rng.random(), rng.random()), "normal": (rng.choice([0.0, 1.5]), rng.random()),
                "randn": (0.0, 1.0)}[kind]
        if kind == "randn":
            x = torch.randn(size, dtype=DTYPES[dtype_name])
        else:
            x = torch.empty(size, dtype=DTYPES[dtype_name])
            x.uniform_(a, b) if kind == "uniform" else x.normal_(a, b)
        case.put(f"expected.{number}", x)
        steps.append(f"{kind},{a.hex()},{b.hex()}")
    case.options["draws"] = ";".join(steps)
    case.options["next24"] = int(torch.empty(1, dtype=torch.int64).random_(0, 2**24))
    case.torch_checked = True
    return case
