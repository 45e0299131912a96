"""PyTorch: scaled_dot_product_attention and nn.MultiheadAttention, called as its users call them."""
import torch

import inputs
from cases import Attention, AttentionTraining, ModuleTraining
from contenders import Call

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}


def version():
    return torch.__version__


def set_threads(n):
    torch.set_num_threads(n)
    torch.inference_mode().__enter__()  # for the rest of the process


def _tensor(array):
    if array.dtype == inputs.DTYPES["bf16"]:  # not a type that torch takes from NumPy
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


class TensorCall(Call):
    """`compute` gives a tensor or several; the first of them have these names."""

    def __init__(self, compute, names):
        super().__init__(compute, lambda: {name: _array(t) for name, t in zip(names, self.outputs())})
        self.compute = compute

    def outputs(self):
        found = self.compute()
        return found if isinstance(found, tuple) else (found,)


def _attention(case):
    q, k, v, mask = (None if a is None else _tensor(a) for a in inputs.attention_inputs(case).values())
    options = {"attn_mask": mask, "is_causal": case.mode == "causal", "enable_gqa": case.kv_heads != case.n_heads}
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return TensorCall(lambda: sdpa(q, k, v, **options), ["output"])


def _training(case):
    with torch.inference_mode(False):
        q, k, v, mask, d_o = (None if a is None else _tensor(a).clone() for a in inputs.attention_inputs(case).values())
        inner = [x.requires_grad_() for x in (q, k, v)]
    options = {"attn_mask": mask, "is_causal": case.mode == "causal", "enable_gqa": case.kv_heads != case.n_heads}

    def step():
        with torch.inference_mode(False):
            output = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            return (output, *torch.autograd.grad(output, inner, d_o))

    return TensorCall(step, ["output", "dq", "dk", "dv"])


def _module(case):
    data = {name: _tensor(array) for name, array in inputs.module_inputs(case).items()}
    x = data.pop("x")
    module = torch.nn.MultiheadAttention(case.embed_dim, case.n_heads, batch_first=True, dtype=DTYPES[case.dtype])
    module.load_state_dict(data)
    module.eval()
    return TensorCall(lambda: module(x, x, x, need_weights=case.weights), ["output", "weights"][:1 + case.weights])


def _module_training(case):
    with torch.inference_mode(False):
        data = {name: _tensor(array).clone() for name, array in inputs.module_inputs(case).items()}
        x, d_output = data.pop("x").requires_grad_(), data.pop("d_output")
        module = torch.nn.MultiheadAttention(case.embed_dim, case.n_heads, batch_first=True, dtype=DTYPES[case.dtype])
        module.load_state_dict(data)

    def step():
        with torch.inference_mode(False):
            x.grad = None
            module.zero_grad()
            module(x, x, x, need_weights=False)[0].backward(d_output)
            return x.grad, module.in_proj_weight.grad

    return TensorCall(step, ["d_x", "d_in_proj_weight"])


def variants(case):
    if isinstance(case, AttentionTraining):
        return [("", lambda: _training(case))]
    if isinstance(case, ModuleTraining):
        return [("", lambda: _module_training(case))]
    return [("", lambda: _attention(case) if isinstance(case, Attention) else _module(case))]
