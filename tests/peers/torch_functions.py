#!/usr/bin/env python3
"""headwise.torch's function beside torch's: values, gradients of both orders, layouts, opcheck, vmap, compiled graphs.

    HEADWISE_BUILD=build/dev python tests/peers/torch_functions.py [TEST...]
"""
import itertools
import resource
import sys
import unittest

from support import run_tests

import torch

import headwise.torch

attend, expected_of = headwise.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention
ops = torch.ops.headwise
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def draw(*shapes, dtype=torch.float32, grad=False):
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes]


def masks(*shape, dtype=torch.float32):
    keep = torch.rand(shape) > 0.4
    keep[..., 0] = True
    return {"none": None, "bool": keep, "float": torch.randn(shape).to(dtype)}


class Values(unittest.TestCase):
    def compare(self, shapes, mask=None, dtype=torch.float64, **options):
        ours = draw(*shapes, dtype=dtype, grad=True)
        theirs = [x.detach().double().requires_grad_() for x in ours]
        wide = mask.double() if mask is not None and mask.is_floating_point() else mask
        found, expected = attend(*ours, mask, **options), expected_of(*theirs, wide, **options)
        self.assertEqual((found.shape, found.dtype), (expected.shape, dtype))
        grad = torch.randn_like(found)
        found.backward(grad)
        expected.backward(grad.double())
        for name, a, b in [("output", found, expected), *((n, x.grad, y.grad) for n, x, y in zip("qkv", ours, theirs))]:
            error = (a.double() - b).abs().max().item() / (1 + b.abs().max().item()) if a.numel() else 0
            self.assertLess(error, DTYPES[dtype], (name, shapes, dtype, options))
        with torch.no_grad():
            self.assertTrue(torch.equal(attend(*ours, mask, **options), found))

    def test_shapes(self):
        for T_q, T_k, d in itertools.product((1, 3, 17, 65), (1, 5, 64, 130), (1, 8, 33)):
            for dtype in DTYPES:
                self.compare(((2, 3, T_q, d), (2, 3, T_k, d), (2, 3, T_k, d)), dtype=dtype)
            self.compare(((2, 3, T_q, d), (2, 3, T_k, d), (2, 3, T_k, d)), is_causal=True)
            for mask in masks(T_q, T_k, dtype=torch.float64).values():
                self.compare(((2, 3, T_q, d), (2, 3, T_k, d), (2, 3, T_k, d)), mask)

    def test_other_shapes(self):
        for shapes in [((5, 8), (7, 8), (7, 8)), ((3, 5, 8), (3, 7, 8), (3, 7, 4)),
                       ((2, 3, 5, 8), (1, 3, 7, 8), (3, 7, 8)), ((2, 2, 3, 5, 8), (2, 1, 3, 7, 8), (2, 2, 3, 7, 8)),
                       ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8))]:
            self.compare(shapes)
            self.compare(shapes, scale=0.3, is_causal=True)
            self.compare(shapes, masks(5, 7)["bool"])

    def test_grouped_heads(self):
        for heads, mask in itertools.product((1, 2, 4), masks(2, 1, 5, 7, dtype=torch.float64).values()):
            self.compare(((2, 4, 5, 8), (2, heads, 7, 8), (2, heads, 7, 8)), mask, enable_gqa=True)

    def test_row_without_a_key(self):
        keep = torch.rand(5, 7) > 0.3
        keep[2] = False
        for dtype in DTYPES:
            inputs = draw((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype, grad=True)
            output = attend(*inputs, keep)
            output.sum().backward()
            self.assertEqual(output[:, :, 2].abs().max(), 0)
            self.assertEqual(inputs[0].grad[:, :, 2].abs().max(), 0)
            self.assertTrue(all(x.grad.isfinite().all() for x in inputs))

    def test_nan_behind_a_mask(self):
        keep = torch.ones(5, 7, dtype=torch.bool).tril()
        q, k, v = draw((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
        clean = [x.clone().requires_grad_() for x in (q, k, v)]
        k[:, :, 5:], v[:, :, 5:] = torch.nan, torch.inf
        poisoned = [x.requires_grad_() for x in (q, k, v)]
        for inputs in (clean, poisoned):
            attend(*inputs, keep).square().sum().backward()
        for a, b in zip(clean, poisoned):
            self.assertLess((a.grad - b.grad).abs().max(), 1e-5)

    def test_memory(self):
        """Of a call and its gradients: no matrix of T_q x T_k, which would be 512 MiB."""
        q = torch.randn(1, 2, 8192, 8, requires_grad=True)
        mask = torch.zeros(1, 1, 1, 8192, requires_grad=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        attend(q, q, q, mask, dropout_p=0.1, is_causal=True).sum().backward()
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 64 * 1024)

    def test_strides(self):
        packed = torch.randn(2, 5, 3, 4, 8)  # (B, T, 3, n_heads, d_head)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        found = attend(q, k, v)
        self.assertLess((found - expected_of(q, k, v)).abs().max(), 1e-5)
        self.assertTrue(found.transpose(1, 2).is_contiguous())  # as torch returns it

    def test_dropout(self):
        q, k, v = draw((2, 4, 33, 8), (2, 4, 65, 8), (2, 4, 65, 8))
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(attend(q, k, v, dropout_p=0.3))
        self.assertTrue(torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2]))
        output, weights = headwise.torch.attention_with_weights(q, k, v, dropout_p=0.3)
        self.assertLess((output - weights @ v).abs().max(), 1e-5)
        self.assertAlmostEqual((weights == 0).float().mean().item(), 0.3, delta=0.02)
        self.assertEqual(attend(q, k, v, dropout_p=1.0).abs().max(), 0)

    def test_errors(self):
        q, k = draw((2, 4, 5, 8), (2, 4, 7, 6))
        with self.assertRaisesRegex(ValueError, "key: found d_head = 6"):
            attend(q, k, k)
        with self.assertRaisesRegex(TypeError, "dtype"):
            attend(q.int(), q.int(), q.int())
        with self.assertRaisesRegex(ValueError, "dropout_p"):
            attend(q, q, q, dropout_p=1.5)
        with self.assertRaisesRegex(ValueError, "query"):
            attend(q[0, 0, 0], q, q)
        with self.assertRaisesRegex(ValueError, "attn_mask"):
            attend(q, q, q, torch.ones(3, 3, dtype=torch.bool))


class Operators(unittest.TestCase):
    def calls(self, dtype, grad):
        q, k, v = draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), dtype=dtype, grad=grad)
        for mask, p in ((None, 0.0), (masks(5, 7)["bool"], 0.2), (draw((5, 7), dtype=dtype, grad=grad)[0], 0.0)):
            yield q, k, v, mask, torch.tensor(77) if p else None, p, False, None, False

    def test_forward_mode_is_refused(self):
        for grad in (False, True):
            q, tangent = draw((2, 3, 5, 8), (2, 3, 5, 8))
            with torch.autograd.forward_ad.dual_level():
                q = torch.autograd.forward_ad.make_dual(q.requires_grad_(grad), tangent)
                for call in (attend, headwise.torch.attention_with_weights):
                    self.assertRaises(NotImplementedError, call, q, q, q)

    def test_gradients_of_several_losses(self):
        q, = draw((2, 3, 5, 8), grad=True)
        output = attend(q, q, q)
        losses = torch.randn(4, *output.shape)
        each = [torch.autograd.grad(output, q, loss, retain_graph=True)[0] for loss in losses]
        together = torch.autograd.grad(output, q, losses, is_grads_batched=True)[0]
        self.assertLess((together - torch.stack(each)).abs().max(), 1e-6)

    def test_gradcheck(self):
        for q, k, v, mask, *options in self.calls(torch.float64, True):
            inputs = (q, k, v, mask) if mask is not None and mask.requires_grad else (q, k, v)
            _, *public = options

            def seeded(function, *inputs):
                torch.manual_seed(0)
                return function(*inputs, *public)

            for call in (lambda q, k, v, m=mask: ops.attention(q, k, v, m, *options, True)[0],
                         lambda q, k, v, m=mask: ops.attention_weights(q, k, v, m, *options, True)[:2],
                         lambda q, k, v, m=mask: seeded(attend, q, k, v, m),
                         lambda q, k, v, m=mask: seeded(headwise.torch.attention_with_weights, q, k, v, m)):
                self.assertTrue(torch.autograd.gradcheck(call, inputs))
                self.assertTrue(torch.autograd.gradgradcheck(call, inputs))

    def test_opcheck(self):
        for dtype, grad in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            close = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {}
            for call in self.calls(dtype, grad):
                torch.library.opcheck(ops.attention.default, (*call, True), **close)
                torch.library.opcheck(ops.attention.default, (*call, False) if not grad else (*call, True), **close)
                torch.library.opcheck(ops.attention_weights.default, (*call, grad), **close)
                q, k, v, mask, seed, *options = call
                rows = [x.detach() for x in ops.attention(*call, True)]
                grad_output = torch.randn_like(rows[0]).requires_grad_(grad)
                weights = ops.attention_weights(*call, False)[1].detach()
                for grad_weights in (None, torch.randn_like(weights).requires_grad_(grad)):
                    torch.library.opcheck(ops.attention_backward.default, (
                        grad_output, grad_weights, q, k, v, mask, seed, *rows, *options,
                        mask is not None and mask.requires_grad), **close)

    def test_transforms(self):
        q, k, v = draw((3, 2, 4, 5, 8), (3, 2, 4, 7, 8), (3, 2, 4, 7, 8))
        for dims, inputs in (((0, 0, 0), (q, k, v)), ((0, None, None), (q, k[0], v[0])), ((None, 0, 0), (q[0], k, v)),
                             ((0, None, 0), (q, k[0], v))):
            for function in (lambda f: torch.vmap(f, dims),
                             lambda f: torch.vmap(torch.func.grad(lambda *x: f(*x).square().sum(), (0, 1, 2)), dims),
                             lambda f: torch.func.grad(lambda *x: torch.vmap(f, dims)(*x).square().sum(), (0, 1, 2))):
                found, expected = function(attend)(*inputs), function(expected_of)(*inputs)
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.vmap(attend, 1, 1)(q, k, v), expected_of(q, k, v), atol=1e-5, rtol=1e-5)

    def test_compiled(self):
        def function(q, k, v):
            return attend(q.relu(), k, v, is_causal=True) + 1

        class Module(torch.nn.Module):
            def forward(self, *inputs):
                return function(*inputs)

        q, k, v = draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
        expected = function(q, k, v)
        compiled = torch.compile(function, fullgraph=True)
        self.assertTrue(torch.equal(compiled(q, k, v), expected))
        self.assertTrue(torch.equal(torch.export.export(Module(), (q, k, v)).module()(q, k, v), expected))
        grads = []
        for f in (function, compiled):
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            f(*inputs).square().sum().backward()
            grads.append([x.grad for x in inputs])
        torch.testing.assert_close(*grads, atol=1e-6, rtol=1e-6)

    def test_compiled_dropout_draws_anew(self):
        q, k, v = draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
        compiled = torch.compile(lambda *x: attend(*x, dropout_p=0.5), fullgraph=True)
        self.assertFalse(torch.equal(compiled(q, k, v), compiled(q, k, v)))


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(run_tests())
