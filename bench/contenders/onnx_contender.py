"""ONNX Runtime: graphs of one operator, the fastest of those that fit; inputs and outputs stay bound.

Attention of opset 24 takes (B, heads, T, d_head). MultiHeadAttention and GroupQueryAttention of its own domain take
(B, T, heads * d_head) and get their inputs so, which nobody times. Its CPU kernels have no bf16.
"""
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import inputs
from cases import Attention, AttentionTraining, ModuleTraining
from contenders import Call, Unsupported

TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE,
         np.dtype(np.float16): TensorProto.FLOAT16, np.dtype(np.bool_): TensorProto.BOOL,
         np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64}
OPSETS = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
IR_VERSION = 10
OWN = "com.microsoft"

n_threads = 1


def version():
    return onnxruntime.__version__


def set_threads(n):
    global n_threads
    n_threads = n


def _value(name, array):
    return helper.make_tensor_value_info(name, TYPES[array.dtype], array.shape)


def _constant(name, array):
    return helper.make_tensor(name, TYPES[array.dtype], array.shape, np.ascontiguousarray(array).tobytes(), raw=True)


def _session(nodes, fed, results, constants):
    graph = helper.make_graph(nodes, "bench", [_value(*item) for item in fed.items()],
                              [_value(*item) for item in results.items()],
                              [_constant(*item) for item in constants.items()])
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _call(nodes, fed, results, output, constants=None):
    """`results` has the arrays that the graph writes to, an input's where it is to be extended in place; `output` makes
    of them what SDPA returns."""
    session = _session(nodes, fed, results, constants or {})
    binding = session.io_binding()
    values = {id(array): onnxruntime.OrtValue.ortvalue_from_numpy(array)
              for array in (*fed.values(), *results.values())}
    for name, array in fed.items():
        binding.bind_ortvalue_input(name, values[id(array)])
    for name, array in results.items():
        binding.bind_ortvalue_output(name, values[id(array)])
    return Call(lambda: session.run_with_iobinding(binding),
                lambda: output({name: values[id(array)].numpy() for name, array in results.items()}),
                (fed, results, values))


def _rows(array):
    """(B, heads, T, d) as (B, T, heads * d)."""
    B, heads, T, d = array.shape
    return inputs.aligned_copy(array.transpose(0, 2, 1, 3).reshape(B, T, heads * d))


def _heads(array, n_heads):
    B, T, width = array.shape
    return array.reshape(B, T, n_heads, width // n_heads).transpose(0, 2, 1, 3)


def _standard(case, data, expanded):
    mask = data["mask"]
    if mask is not None and expanded:
        mask = inputs.aligned_copy(np.broadcast_to(mask, mask.shape[:2] + (case.T_q, case.T_k)))
    fed = {name: data[name] for name in "qkv"} | ({} if mask is None else {"mask": mask})
    node = helper.make_node("Attention", ["q", "k", "v"] + ["mask"] * (mask is not None), ["o"],
                            is_causal=int(case.mode == "causal"))
    return _call([node], fed, {"o": inputs.aligned_copy(data["q"])}, lambda found: {"output": found["o"]})


def _own_multi_head(case, data):
    if case.kv_heads != case.n_heads:
        raise Unsupported("MultiHeadAttention has no grouped heads")
    fed = {name: _rows(data[name]) for name in "qkv"}
    wired = ["q", "k", "v", "", "", ""]  # bias, key padding, bias of the scores
    if case.mode == "padded":
        fed["padding"], wired[4] = data["mask"][:, 0, 0].astype(np.int32), "padding"
    elif case.mask_shape:
        mask = data["mask"]
        if case.mode == "boolean":
            mask = np.where(mask, 0, -np.inf).astype(data["q"].dtype)
        fed["mask"], wired[5] = inputs.aligned_copy(mask), "mask"
    while not wired[-1]:
        wired.pop()
    node = helper.make_node("MultiHeadAttention", wired, ["o"], domain=OWN, num_heads=case.n_heads,
                            unidirectional=int(case.mode == "causal"))
    return _call([node], fed, {"o": inputs.aligned_copy(fed["q"])},
                 lambda found: {"output": _heads(found["o"], case.n_heads)})


def _own_grouped(case, data):
    """Always causal, so for square causal calls, and for one query whose key and value are the cache's last."""
    decode = case.T_q == 1 and case.mode == "full" and case.T_k > 1
    if not decode and not (case.mode == "causal" and case.T_q == case.T_k):
        raise Unsupported("GroupQueryAttention is causal")
    fed = {"q": _rows(data["q"])}
    results = {"o": inputs.aligned_copy(fed["q"])}
    for name in "kv":
        past, present = "past_" + name, "present_" + name
        results[present] = inputs.aligned_copy(data[name])
        if decode:
            fed[past] = results[present]
        fed[name] = _rows(data[name][:, :, -1:] if decode else data[name])
    fed["last"] = np.full(case.B, case.T_k - 1, np.int32)
    fed["total"] = np.array([case.T_k], np.int32)
    pasts = ["past_k", "past_v"] if decode else ["", ""]
    node = helper.make_node("GroupQueryAttention", ["q", "k", "v", *pasts, "last", "total"],
                            ["o", "present_k", "present_v"], domain=OWN, num_heads=case.n_heads,
                            kv_num_heads=case.kv_heads)
    return _call([node], fed, results, lambda found: {"output": _heads(found["o"], case.n_heads)})


def _module_parameters(case):
    data = inputs.module_inputs(case)
    return data.pop("x"), {"w": data["in_proj_weight"].T, "b": data["in_proj_bias"],
                           "w_out": data["out_proj.weight"].T, "b_out": data["out_proj.bias"]}


def _own_module(case):
    if case.weights:
        raise Unsupported("Attention returns no weights")
    x, constants = _module_parameters(case)
    nodes = [helper.make_node("Attention", ["x", "w", "b"], ["a"], domain=OWN, num_heads=case.n_heads),
             helper.make_node("MatMul", ["a", "w_out"], ["p"]), helper.make_node("Add", ["p", "b_out"], ["o"])]
    return _call(nodes, {"x": x}, {"o": inputs.aligned_copy(x)}, lambda found: {"output": found["o"]}, constants)


def _plain_module(case):
    """Of elementary operators: what an exporter writes for the module."""
    x, constants = _module_parameters(case)
    heads = (case.B, case.T, 3, case.n_heads, case.embed_dim // case.n_heads)
    constants |= {"heads": np.array(heads), "rows": np.array((case.B, case.T, case.embed_dim)),
                  "scale": np.array((case.embed_dim // case.n_heads) ** -0.5, x.dtype),
                  "head_dim": np.array([1]), **{f"at{i}": np.array(i) for i in range(3)}}
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["xw"]), node("Add", ["xw", "b"], ["qkv"]),
             node("Reshape", ["qkv", "heads"], ["split"]),
             node("Transpose", ["split"], ["turned"], perm=[2, 0, 3, 1, 4]),
             *(node("Gather", ["turned", f"at{i}"], [name], axis=0) for i, name in enumerate("qkv")),
             node("Mul", ["q", "scale"], ["qs"]), node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
             node("MatMul", ["qs", "kt"], ["s"]), node("Softmax", ["s"], ["prob"], axis=-1),
             node("MatMul", ["prob", "v"], ["pv"]), node("Transpose", ["pv"], ["back"], perm=[0, 2, 1, 3]),
             node("Reshape", ["back", "rows"], ["a"]), node("MatMul", ["a", "w_out"], ["p"]),
             node("Add", ["p", "b_out"], ["o"])]
    results = {"o": inputs.aligned_copy(x)}
    if case.weights:
        nodes.append(node("ReduceMean", ["prob", "head_dim"], ["mean"], keepdims=0))
        results["mean"] = inputs.aligned((case.B, case.T, case.T), x.dtype)
    return _call(nodes, {"x": x}, results, lambda found: {"output": found["o"], "weights": found.get("mean")},
                 constants)


def variants(case):
    if isinstance(case, (AttentionTraining, ModuleTraining)):
        raise Unsupported("computes no gradients")
    if case.dtype == "bf16":
        raise Unsupported("its CPU kernels have no bf16")
    if not isinstance(case, Attention):
        return [("Attention", lambda: _own_module(case)), ("elementary operators", lambda: _plain_module(case))]
    data = inputs.attention_inputs(case)
    found = [("Attention-24", lambda: _standard(case, data, False)),
             ("MultiHeadAttention", lambda: _own_multi_head(case, data)),
             ("GroupQueryAttention", lambda: _own_grouped(case, data))]
    if case.mode == "padded":
        found.append(("Attention-24, mask expanded", lambda: _standard(case, data, True)))
    return found
