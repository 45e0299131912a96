"""PyTorch's modules and models in three ways, each for a process of its own.

torch    as they are
convert  after headwise.torch.convert
enable   while headwise.torch.enable() stands
"""
import torch

from contenders.torch_contender import TensorCall

way = "torch"


def version():
    return torch.__version__


def set_threads(n):
    torch.set_num_threads(n)
    if way != "torch":
        import headwise.torch
        headwise.set_num_threads(n)
        if way == "enable":
            headwise.torch.enable()


def _module(case):
    B, T, E, n_heads = case.size
    module, x = torch.nn.MultiheadAttention(E, n_heads, batch_first=True), torch.randn(B, T, E)
    if case.option == "weights":
        return module, x, lambda: module(x, x, x)
    return module, x, lambda: module(x, x, x, need_weights=False)[0]


def _function(case):
    B, n_heads, T, d_head = case.size
    q, k, v = torch.randn(3, B, n_heads, T, d_head)
    return torch.nn.Module(), q, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _encoder_layer(case):
    B, T, E, n_heads = case.size
    layer = torch.nn.TransformerEncoderLayer(E, n_heads, 4 * E, dropout=0.0, batch_first=True)
    x, padding = torch.randn(B, T, E), None
    if case.option == "padded":  # from half of the sequence on, or later
        padding = torch.arange(T) >= T // 2 + torch.arange(B)[:, None] % (T // 2)
    return layer, x, lambda: layer(x, src_key_padding_mask=padding)


def _minilm(case):
    import transformers
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModel.from_pretrained(case.folder)
    ids = torch.randint(1000, 30000, case.size)
    mask = torch.ones_like(ids)
    return model, ids, lambda: model(ids, attention_mask=mask)[0]


BUILDERS = {"module": _module, "function": _function, "encoder layer": _encoder_layer, "MiniLM": _minilm}


def _build(case):
    """A call forward, or forward and backward; with the same numbers in every process."""
    torch.manual_seed(0)
    torch.set_grad_enabled(case.training)  # until the next case
    model, x, forward = BUILDERS[case.kind](case)
    model.train(case.training)
    if way == "convert":
        import headwise.torch
        headwise.torch.convert(model)
    if not case.training:
        return TensorCall(forward, ["output", "weights"])
    inner = {"d_x": x.requires_grad_(), **dict(model.named_parameters())}
    d_output = torch.randn_like(x)

    def step():
        for tensor in inner.values():
            tensor.grad = None
        output = forward()
        output.backward(d_output)
        return (output, *(tensor.grad for tensor in inner.values()))

    return TensorCall(step, ["output", *inner])


def variants(case):
    return [("", lambda: _build(case))]


def answer(case):
    """All rows of what this way computes, for the others to be compared with."""
    return {name: (..., array) for name, array in _build(case).result().items()}
