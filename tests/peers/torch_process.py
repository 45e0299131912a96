#!/usr/bin/env python3
"""enable(): what of torch reaches headwise then, and a process with torch's threads, forks and an end.

    HEADWISE_BUILD=build/dev python tests/peers/torch_process.py [TEST...]
"""
import contextlib
import gc
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import unittest
import warnings

from support import BUILD, run_tests

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

import headwise.torch
from headwise import _core

warnings.filterwarnings("ignore", message=".*nested tensor.*")
calls = []


def counted(function):
    def call(*args, **kwargs):
        calls.append(function)
        return function(*args, **kwargs)
    return call


_core._attend = counted(_core._attend)
_core._attend_backward = counted(_core._attend_backward)
_core.scaled_dot_product_attention = counted(_core.scaled_dot_product_attention)
_core._PackedModule.forward = (lambda forward: lambda *args: counted(forward)(*args))(_core._PackedModule.forward)


class Enabled(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
        self.keep = torch.rand(5, 7) > 0.3
        self.keep[:, 0] = True

    def compare(self, call, reaches=True, bound=1e-5):
        """Without and within enabled(), on every tensor that the call returns."""
        expected = call()
        calls.clear()
        with headwise.torch.enabled():
            found = call()
        self.assertEqual(bool(calls), reaches)
        for a, b in zip(expected, found):
            if a is None:
                self.assertIsNone(b)
                continue
            self.assertEqual(a.shape, b.shape)
            self.assertLess((a - b).abs().max(), bound)

    def test_functions(self):
        q, k, v, keep = self.q, self.k, self.v, self.keep
        for mode in (contextlib.nullcontext, torch.no_grad, torch.inference_mode):
            with mode():
                self.compare(lambda: [attend(q, k, v)])
                self.compare(lambda: [attend(q, k, v, is_causal=True, scale=0.3)])
                self.compare(lambda: [attend(q, k, v, keep)])
                self.compare(lambda: [attend(q, k, v, torch.where(keep, 0.0, -1e30))])
                self.compare(lambda: [attend(q, k, v[..., :3])])
                self.compare(lambda: [attend(q[0, 0], k[0, 0], v[0, 0])])
                self.compare(lambda: [attend(q, k[:, :2], v[:, :2], enable_gqa=True)])
                flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
                self.compare(lambda: flash(q, q, q, is_causal=True))
        self.compare(lambda: [torch.nn.functional.multi_head_attention_forward(
            *[q[:, 0]] * 3, 8, 2, torch.ones(24, 8), None, None, None, False, 0.0, torch.ones(8, 8), None,
            need_weights=False)[0]], bound=1e-4)
        self.compare(lambda: [torch.vmap(attend)(q, k, v)], reaches=False)
        self.compare(lambda: [torch.func.grad(lambda q: attend(q, k, v).square().sum())(q)])

    def test_gradients(self):
        mask = torch.randn(5, 7)
        for arguments in ({}, {"attn_mask": self.keep}, {"attn_mask": mask}, {"is_causal": True}):
            def grads():
                inputs = [x.clone().requires_grad_() for x in (self.q, self.k, self.v)]
                attend(*inputs, **arguments).square().sum().backward()
                return [x.grad for x in inputs]
            self.compare(grads, bound=1e-4)

        def grads_of_private_operator():
            inputs = [x.clone().requires_grad_() for x in (self.q, self.q + 1, self.q - 1)]
            bias = torch.zeros(5, 5).masked_fill(torch.rand(5, 5) > 2, -torch.inf)
            bias[2] = -torch.inf
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            flash(*inputs, attn_mask=bias)[0].square().sum().backward()
            return [x.grad for x in inputs]
        self.compare(grads_of_private_operator, bound=1e-4)

        def grad_of_mask():
            leaf = mask.clone().requires_grad_()
            attend(self.q, self.k, self.v, leaf).square().sum().backward()
            return [leaf.grad]
        self.compare(grad_of_mask, bound=1e-4)

    def test_modules(self):
        x = torch.randn(3, 6, 32)
        padding = torch.zeros(3, 6, dtype=torch.bool)
        padding[1, 4:] = True
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        module = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).eval()
        with torch.no_grad():
            for masks in ({}, {"key_padding_mask": padding}, {"attn_mask": later},
                          {"key_padding_mask": padding, "attn_mask": later}):
                self.compare(lambda: module(x, x, x, **masks))
                self.compare(lambda: module(x, x, x, **masks, average_attn_weights=False))
                for key in (x, x + 1):  # the fast path is for self-attention
                    self.compare(lambda: module(x, key, x, **masks, need_weights=False))
            self.compare(lambda: [encoder(x)])
            self.compare(lambda: [encoder(x, mask=later)])
            self.compare(lambda: [encoder(x, src_key_padding_mask=padding)], reaches=False)  # nested: torch's own
            encoder.use_nested_tensor = False
            self.compare(lambda: [encoder(x, src_key_padding_mask=padding)[~padding]])
        self.compare(lambda: module.train()(x, x, x, need_weights=False))

    def test_not_ours(self):
        q = torch.randn(2, 4, 5, 8, device="meta")
        with headwise.torch.enabled():
            self.assertEqual(attend(q, q, q).shape, q.shape)
            with self.assertRaises(RuntimeError):
                attend(self.q.int(), self.k.int(), self.v.int())
            nested = torch.nested.nested_tensor([torch.randn(3, 4, 8), torch.randn(5, 4, 8)], layout=torch.jagged)
            calls.clear()
            x = nested.transpose(1, 2)
            self.assertEqual(attend(x, x, x).shape, x.shape)

    def test_dropout(self):
        with headwise.torch.enabled():
            runs = []
            for seed in (1, 1, 2):
                torch.manual_seed(seed)
                runs.append(attend(self.q, self.k, self.v, dropout_p=0.5))
        self.assertTrue(torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2]))

    def test_switching(self):
        def reaches():
            calls.clear()
            attend(self.q, self.k, self.v)
            return bool(calls)

        self.assertFalse(reaches())
        headwise.torch.enable()
        headwise.torch.enable()
        with headwise.torch.enabled():
            self.assertTrue(reaches())
        self.assertTrue(reaches())
        headwise.torch.disable()
        headwise.torch.disable()
        self.assertFalse(reaches())
        with self.assertRaises(ZeroDivisionError), headwise.torch.enabled():
            1 / 0
        self.assertFalse(reaches())

    def test_compiled(self):
        def function(q, k, v):
            return attend(q.relu(), k, v, is_causal=True) + 1

        class Module(torch.nn.Module):
            def forward(self, *inputs):
                return function(*inputs)

        inputs = (self.q, self.k, self.v)
        exported = torch.export.export(Module(), inputs)
        for grad in (False, True):
            with headwise.torch.enabled(), torch.set_grad_enabled(grad):
                torch._dynamo.reset()
                leaves = [x.clone().requires_grad_(grad) for x in inputs]
                compiled = torch.compile(function, fullgraph=True)
                compiled(*leaves)
                calls.clear()
                found = compiled(*leaves)
                self.assertTrue(calls)
                self.assertLess((found - function(*leaves)).abs().max(), 1e-6)
                if grad:
                    found.sum().backward()
                calls.clear()
                self.assertLess((exported.module()(*inputs) - found).abs().max(), 1e-6)
                self.assertTrue(calls)
        # What torch keeps on disk of these graphs is not what it takes afterwards.
        torch._dynamo.reset()
        calls.clear()
        torch.compile(function, fullgraph=True)(*inputs)
        self.assertFalse(calls)


def first_row(x):
    """Not a sum: torch's own threads are gone in a child, and it waits for them."""
    return headwise.torch.scaled_dot_product_attention(x, x, x)[0, 0, 0].tolist()


def in_child(queue, x):
    queue.put(first_row(x))


class Process(unittest.TestCase):
    def test_two_threads(self):
        """Both call at once, one function and one module, and torch's own matrix products between."""
        module = headwise.torch.MultiheadAttention(64, 4, batch_first=True).eval()
        x, q = torch.randn(4, 65, 64), torch.randn(2, 4, 130, 64)
        with torch.no_grad():
            expected = module(x, x, x)[0], headwise.torch.scaled_dot_product_attention(q, q, q)
        wrong = []

        def work():
            with torch.no_grad():
                for _ in range(200):
                    found = module(x, x, x)[0], headwise.torch.scaled_dot_product_attention(q, q, q)
                    x @ x.transpose(1, 2)
                    if not (torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])):
                        wrong.append(found)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertFalse(wrong or any(thread.is_alive() for thread in threads))

    def test_fork_after_use(self):
        x = torch.randn(1, 4, 600, 64)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue, x))
        expected = first_row(x)
        child.start()
        self.assertEqual(queue.get(timeout=60), expected)
        child.join(60)
        self.assertEqual(child.exitcode, 0)

    def test_ends_quietly(self):
        code = ("import torch, threading, headwise.torch as h; h.enable();"
                "m = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval(); x = torch.randn(2, 33, 64);"
                "kept = [m(x, x, x), h.convert(m), m(x, x, x)];"
                "t = threading.Thread(target=lambda: [m(x, x, x) for _ in range(300)]); t.start()")
        env = os.environ | {"PYTHONPATH": str(BUILD / "python")}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_nothing_leaks(self):
        module = headwise.torch.MultiheadAttention(64, 4, batch_first=True).eval()
        x, q = torch.randn(4, 32, 64), torch.randn(2, 4, 32, 64)

        def work(n):
            for i in range(n):
                with torch.no_grad():
                    module(x, x, x)
                    headwise.torch.scaled_dot_product_attention(q, q, q)
                if i % 20 == 0:
                    module(x.requires_grad_(), x, x)[0].sum().backward()
                    with torch.no_grad():
                        module.in_proj_weight.add_(1e-6)
                    try:
                        headwise.torch.scaled_dot_product_attention(q, q[:, :3], q)
                    except ValueError:
                        pass
            gc.collect()
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        work(500)
        before = work(500)
        self.assertLess(work(10000) - before, 8192)  # KiB; 10 000 outputs of the module alone are 320 MiB


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(run_tests())
