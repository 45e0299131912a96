"""OpenVINO: ScaledDotProductAttention of opset 13, latency hint, inputs and outputs shared and not copied.

It may compute bf16 in bf16, and f32 in f32 only. f16 is tried both ways: what it calls f16 is bf16 on some CPUs, and
then too far off to count.
"""
import numpy as np
import openvino as ov
from openvino import opset13 as ops

import inputs
from cases import Attention, AttentionTraining, ModuleTraining
from contenders import Call, Unsupported

TYPES = {"f32": ov.Type.f32, "bf16": ov.Type.bf16, "f16": ov.Type.f16}

n_threads = 1


def version():
    return ov.__version__.split("-")[0]


def set_threads(n):
    global n_threads
    n_threads = n


def _tensor(array):
    if array.dtype == inputs.DTYPES["bf16"]:  # not a type that it takes from NumPy
        return ov.Tensor(array.view(np.uint16), array.shape, ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)


def _call(precision, nodes, fed, results, output):
    """`nodes`: parameters in the order of `fed`, and what is computed in that of `results`, which is written to."""
    parameters, outputs = nodes
    model = ov.Model(outputs, parameters, "bench")
    options = {"INFERENCE_NUM_THREADS": n_threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
               "INFERENCE_PRECISION_HINT": precision}
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    tensors = [_tensor(array) for array in [*fed, *results]]
    for i in range(len(fed)):
        request.set_input_tensor(i, tensors[i])
    for i in range(len(results)):
        request.set_output_tensor(i, tensors[len(fed) + i])
    return Call(lambda: request.infer(share_inputs=True, share_outputs=True), lambda: output(*results),
                (fed, results, tensors))


def _sdpa(case, q, k, v, mask):
    fed = [array for array in (q, k, v, mask) if array is not None]
    types = [TYPES[case.dtype]] * 3 + [ov.Type.boolean if case.mode in ("padded", "boolean") else TYPES[case.dtype]]
    parameters = [ops.parameter(array.shape, kind) for array, kind in zip(fed, types)]
    node = ops.scaled_dot_product_attention(*parameters[:3], *parameters[3:], causal=case.mode == "causal")
    return (parameters, [node]), fed


def _attention(case, precision):
    data = inputs.attention_inputs(case)
    if case.kv_heads != case.n_heads:
        raise Unsupported("no grouped heads in ScaledDotProductAttention")
    q, k, v, mask = data.values()
    nodes, fed = _sdpa(case, q, k, v, mask)
    return _call(precision, nodes, fed, [inputs.aligned_copy(q)], lambda o: {"output": o})


def _grouped_decode(case, precision):
    """One query for each head: the heads of a group are as well the queries of one head."""
    q, k, v, mask = inputs.attention_inputs(case).values()
    folded = q.reshape(case.B, case.kv_heads, case.n_heads // case.kv_heads, case.d_head)
    nodes, fed = _sdpa(case, folded, k, v, mask)
    return _call(precision, nodes, fed, [inputs.aligned_copy(folded)], lambda o: {"output": o.reshape(q.shape)})


def _module(case, precision):
    data = inputs.module_inputs(case)
    kind = TYPES[case.dtype]
    constant = {name: ops.constant(_tensor(array)) for name, array in data.items() if name != "x"}
    x = ops.parameter(data["x"].shape, kind)
    d = case.embed_dim // case.n_heads
    qkv = ops.add(ops.matmul(x, constant["in_proj_weight"], False, True), constant["in_proj_bias"])
    split = ops.reshape(qkv, [case.B, case.T, 3, case.n_heads, d], False)
    turned = ops.transpose(split, [2, 0, 3, 1, 4])
    q, k, v = (ops.gather(turned, np.int64(i), np.int64(0)) for i in range(3))
    weights = None
    if case.weights:
        scores = ops.matmul(ops.multiply(q, np.float32(d ** -0.5)), k, False, True)
        weights = ops.softmax(scores, -1)
        heads = ops.matmul(weights, v, False, False)
    else:
        heads = ops.scaled_dot_product_attention(q, k, v)
    rows = ops.reshape(ops.transpose(heads, [0, 2, 1, 3]), [case.B, case.T, case.embed_dim], False)
    out = ops.add(ops.matmul(rows, constant["out_proj.weight"], False, True), constant["out_proj.bias"])
    outputs, results = [out], [inputs.aligned_copy(data["x"])]
    if case.weights:
        outputs.append(ops.reduce_mean(weights, np.int64(1), False))
        results.append(inputs.aligned((case.B, case.T, case.T), data["x"].dtype))
    call = _call(precision, ([x], outputs), [data["x"]], results, lambda o, w=None: {"output": o, "weights": w})
    call.keep = call.keep, data  # the constants share its memory
    return call


def _builder(case):
    if not isinstance(case, Attention):
        return "", _module
    if case.kv_heads != case.n_heads and case.T_q == 1:
        return "heads of a group as queries, ", _grouped_decode
    return "", _attention


def variants(case):
    if isinstance(case, (AttentionTraining, ModuleTraining)):
        raise Unsupported("computes no gradients")
    name, build = _builder(case)
    precisions = {"bf16": ("bf16",), "f16": ("f16", "f32")}.get(case.dtype, ("f32",))
    return [(f"{name}in {p}", lambda p=p: build(case, p)) for p in precisions]
