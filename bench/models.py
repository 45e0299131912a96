#!/usr/bin/env python3
"""Modules and models of PyTorch, as they are and with headwise in them: seconds a call and how many times faster.

    bench/models [--only TEXT] [--threads N] [--rounds N] [--model FOLDER] [--json FILE]

convert  the same model after headwise.torch.convert
enable   the same model while headwise.torch.enable() stands

Each way runs in a process of its own, so that no thread of one waits beside another's work. A row is timed after its
outputs were found to be torch's. FOLDER holds MiniLM's files; without it that row is left out. Run it while nothing
else computes.
"""
import argparse
import json
import multiprocessing
import sys
import time

from race import SETTLE_SECONDS
from timing import Times, calls_per_block, show_seconds

WAYS = ("torch", "convert", "enable")
BLOCK_SECONDS = 0.1
MAX_ERROR = 1e-4  # of f32, relative to the largest number


def attention_call(B, T, E, heads, training=False, weights=False):
    """nn.MultiheadAttention; training adds the backward pass."""
    import torch
    module = torch.nn.MultiheadAttention(E, heads, batch_first=True).train(training)
    x = torch.randn(B, T, E, requires_grad=training)
    return module, lambda: module(x, x, x, need_weights=weights)[0]


def function_call(B, heads, T, d):
    import torch
    q, k, v = torch.randn(3, B, heads, T, d)
    return torch.nn.Module(), lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def layer_call(B, T, E, heads, training=False, padded=False):
    import torch
    layer = torch.nn.TransformerEncoderLayer(E, heads, 4 * E, dropout=0.0, batch_first=True).train(training)
    x = torch.randn(B, T, E, requires_grad=training)
    padding = torch.arange(T) >= T // 2 + torch.arange(B)[:, None] % (T // 2) if padded else None
    return layer, lambda: layer(x, src_key_padding_mask=padding)


def minilm_call(folder, B, T):
    import torch
    import transformers
    model = transformers.AutoModel.from_pretrained(folder).eval()
    ids = torch.randint(1000, 30000, (B, T))
    mask = torch.ones_like(ids)
    return model, lambda: model(ids, attention_mask=mask)[0]


def rows(folder):
    """Name, what builds the model and its call, and whether to run the call backward too."""
    sizes = ((1, 4, 8, 2), (2, 16, 512, 8), (1, 1, 768, 12), (8, 128, 384, 12), (1, 1024, 768, 12))
    for size in sizes:
        yield f"module {size}", lambda size=size: attention_call(*size), False
        yield f"module {size} weights", lambda size=size: attention_call(*size, weights=True), False
    for size in sizes:
        yield f"module {size} training", lambda size=size: attention_call(*size, training=True), True
    for size in ((1, 2, 8, 8), (2, 8, 16, 64), (4, 12, 128, 64), (1, 8, 1024, 64)):
        yield f"function {size}", lambda size=size: function_call(*size), False
    for size in ((2, 16, 64, 4), (8, 128, 384, 12), (1, 512, 512, 8)):
        yield f"encoder layer {size}", lambda size=size: layer_call(*size), False
        yield f"encoder layer {size} padded", lambda size=size: layer_call(*size, padded=True), False
        yield f"encoder layer {size} training", lambda size=size: layer_call(*size, training=True), True
    if folder:
        for size in ((1, 16), (8, 128), (1, 512)):
            yield f"MiniLM {size}", lambda size=size: minilm_call(folder, *size), False


class Server:
    """One way, in its process."""

    def __init__(self, way, n_threads, folder):
        import torch
        torch.set_num_threads(n_threads)
        self.torch, self.way = torch, way
        self.rows = {name: (build, backward) for name, build, backward in rows(folder)}
        if way != "torch":
            import headwise.torch
            headwise.set_num_threads(n_threads)
            self.convert = headwise.torch.convert
            if way == "enable":
                headwise.torch.enable()

    def prepare(self, name):
        """The output, and a call's time."""
        self.torch.manual_seed(0)
        build, backward = self.rows[name]
        model, forward = build()
        if self.way == "convert":
            self.convert(model)
        if backward:
            output = forward().detach()
            grad = self.torch.randn_like(output)
            self.call = lambda: forward().backward(grad)
        else:
            with self.torch.no_grad():
                output = forward()
            self.call = forward
        self.grad = backward
        return output.numpy(), min(self.time(1) for _ in range(3))

    def time(self, calls):
        with self.torch.set_grad_enabled(self.grad):
            start = time.perf_counter()
            for _ in range(calls):
                self.call()
            return (time.perf_counter() - start) / calls


def serve(pipe, way, n_threads, folder):
    server = Server(way, n_threads, folder)
    while (message := pipe.recv()) is not None:
        pipe.send(getattr(server, message[0])(*message[1:]))


def ask(pipe, *message):
    pipe.send(message)
    return pipe.recv()


def measure(pipes, name, rounds):
    found = {way: ask(pipe, "prepare", name) for way, pipe in pipes.items()}
    expected = found["torch"][0]
    for way, (output, _) in found.items():
        error = abs(output - expected).max() / max(1.0, abs(expected).max())
        if not error <= MAX_ERROR:
            sys.exit(f"{name}: {way} is {error:.1e} off torch's output")
    samples = {way: [] for way in pipes}
    for _ in range(rounds):
        for way, pipe in pipes.items():
            time.sleep(SETTLE_SECONDS)
            calls = calls_per_block(found[way][1], BLOCK_SECONDS)
            ask(pipe, "time", max(1, calls // 10))
            samples[way].append(ask(pipe, "time", calls))
    return {way: Times(tuple(s)) for way, s in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose names hold it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", metavar="FOLDER", help="MiniLM's, as transformers loads it")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    context, pipes = multiprocessing.get_context("spawn"), {}
    for way in WAYS:
        pipes[way], theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, way, options.threads, options.model), daemon=True).start()
    results = []
    print(f"{'':<42}{'torch':>10}{'convert':>10}{'':>8}{'enable':>10}")
    for name, *_ in rows(options.model):
        if options.only in name:
            times = measure(pipes, name, options.rounds)
            base = times["torch"].best
            print(f"{name:<42}{show_seconds(base):>10}" + "".join(
                f"{show_seconds(times[way].best):>10} {base / times[way].best:6.2f}x" for way in WAYS[1:]), flush=True)
            results.append({"row": name} | {way: t.microseconds() for way, t in times.items()})
    for pipe in pipes.values():
        pipe.send(None)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
