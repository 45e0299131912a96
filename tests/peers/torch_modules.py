#!/usr/bin/env python3
"""headwise.torch.MultiheadAttention and convert() beside torch's modules.

    HEADWISE_BUILD=build/dev python tests/peers/torch_modules.py [TEST...]
"""
import copy
import itertools
import pickle
import sys
import unittest
import warnings

from support import run_tests

import torch

import headwise.torch
from headwise.torch import _module

warnings.filterwarnings("ignore", message=".*(nested tensor|enable_nested_tensor).*")


def drawn(module):
    """With biases that are not 0."""
    for name, p in module.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(p)
    return module


def pair(E=16, heads=4, **options):
    theirs = drawn(torch.nn.MultiheadAttention(E, heads, **options)).eval()
    return theirs, headwise.torch.convert(copy.deepcopy(theirs))


class Module(unittest.TestCase):
    def options(self):
        names = ("bias", "add_bias_kv", "add_zero_attn", "batch_first")
        for values in itertools.product((True, False), repeat=4):
            for widths in ({}, {"kdim": 8, "vdim": 12}):
                yield dict(zip(names, values)) | widths

    def inputs(self, options, batched, dtype):
        def rows(T, width):
            shape = (T, width) if not batched else (3, T, width) if options["batch_first"] else (T, 3, width)
            return torch.randn(shape, dtype=dtype)

        q = rows(5, 16)
        yield (q, rows(7, options.get("kdim", 16)), rows(7, options.get("vdim", 16))), 7
        if "kdim" not in options:
            k = rows(7, 16)
            yield (q, k, k), 7
            yield (q, q, q), 5

    def masks(self, T_k, batched, dtype):
        hidden = torch.rand(3, T_k) > 0.7
        hidden[:, 0] = False
        blocked = torch.rand(5, T_k) > 0.7
        blocked[:, 0] = False
        paddings = [None, hidden, torch.randn(3, T_k, dtype=dtype)]
        for padding, mask in itertools.product(paddings, [None, blocked, torch.randn(12, 5, T_k, dtype=dtype)]):
            if not batched:
                padding = padding if padding is None else padding[0]
                mask = mask[:4] if mask is not None and mask.dim() == 3 else mask
            if padding is None or mask is None or padding.dtype == mask.dtype:
                yield {"key_padding_mask": padding, "attn_mask": mask}

    def compare(self, theirs, ours, inputs, call, bound):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                expected, found = theirs(*inputs, **call), ours(*inputs, **call)
            self.assertEqual(found[1] is None, expected[1] is None)
            used = [(a, b) for a, b in zip(expected, found) if a is not None]
            for a, b in used:
                self.assertEqual(a.shape, b.shape)
                self.assertLess((a - b).abs().max(), bound)
            if grad:
                grads = [torch.randn_like(a) for a, _ in used]
                for module, outputs in ((theirs, [a for a, _ in used]), (ours, [b for _, b in used])):
                    module.zero_grad()
                    torch.autograd.backward(outputs, grads)
                for (name, a), b in zip(theirs.named_parameters(), ours.parameters()):
                    self.assertLess((a.grad - b.grad).abs().max() / (1 + a.grad.abs().max()), bound * 10, name)

    def test_every_option(self):
        for options, batched, dtype in itertools.product(self.options(), (True, False), (torch.float64, torch.float32)):
            theirs, ours = pair(**options, dtype=dtype)
            for inputs, T_k in self.inputs(options, batched, dtype):
                for masks in self.masks(T_k, batched, dtype):
                    for weights, average in ((False, True), (True, True), (True, False)):
                        call = masks | {"need_weights": weights, "average_attn_weights": average}
                        self.compare(theirs, ours, inputs, call, 1e-12 if dtype == torch.float64 else 1e-5)

    def test_half(self):
        for dtype, bound in ((torch.bfloat16, 5e-2), (torch.float16, 5e-3)):
            theirs, ours = pair(64, 4, batch_first=True, dtype=dtype)
            x = torch.randn(2, 33, 64, dtype=dtype)
            for grad in (False, True):
                with torch.set_grad_enabled(grad):
                    for a, b in zip(theirs.double()(*[x.double()] * 3), ours(x, x, x)):
                        self.assertEqual(b.dtype, dtype)
                        self.assertLess((a - b.double()).abs().max(), bound)

    def test_autocast(self):
        theirs, ours = pair(batch_first=True, add_bias_kv=True)
        x = torch.randn(2, 5, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected, found = theirs(x, x, x), ours(x, x, x)
        for a, b in zip(expected, found):
            self.assertEqual(a.dtype, b.dtype)
            self.assertLess((a.float() - b.float()).abs().max(), 5e-2)

    def test_dropout(self):
        _, ours = pair(dropout=0.5, batch_first=True)
        x = torch.randn(2, 33, 16)
        self.assertTrue(torch.equal(ours(x, x, x)[0], ours(x, x, x)[0]))
        weights = ours.train()(x, x, x, average_attn_weights=False)[1]
        self.assertAlmostEqual((weights == 0).float().mean().item(), 0.5, delta=0.05)

    def test_parameters_that_change(self):
        _, ours = pair(batch_first=True)
        x = torch.randn(2, 5, 16)
        before = ours(x, x, x)[0]
        changes = [lambda: ours.in_proj_weight.mul_(1.5), lambda: ours.in_proj_weight.data.mul_(1.5),
                   lambda: ours.out_proj.weight.data[3].zero_(), lambda: ours.out_proj.weight.data[:, 5].zero_(),
                   lambda: ours.out_proj.bias.data[3].fill_(7), lambda: ours.load_state_dict(pair()[0].state_dict()),
                   lambda: setattr(ours.in_proj_weight, "data", torch.randn(48, 16)),
                   lambda: setattr(ours, "in_proj_weight", torch.nn.Parameter(torch.randn(48, 16)))]
        with torch.no_grad():
            for change in changes:
                change()
                after = ours(x, x, x)[0]
                theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
                theirs.load_state_dict(ours.state_dict())
                self.assertFalse(torch.equal(before, after))
                self.assertLess((after - theirs(x, x, x)[0]).abs().max(), 1e-5)
                before = after

    def test_tables_end_with_the_module(self):
        kept = len(_module._tables)
        module = headwise.torch.MultiheadAttention(16, 4, batch_first=True).eval()
        with torch.no_grad():
            module(*[torch.randn(2, 5, 16)] * 3)
        self.assertEqual(len(_module._tables), kept + 1)
        del module
        self.assertEqual(len(_module._tables), kept)

    def test_copies(self):
        _, ours = pair(batch_first=True)
        x = torch.randn(2, 5, 16)
        with torch.no_grad():
            expected = ours(x, x, x)[0]
            for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
                self.assertIsInstance(other, headwise.torch.MultiheadAttention)
                self.assertTrue(torch.equal(other(x, x, x)[0], expected))
            other = {name: torch.randn_like(p) for name, p in ours.named_parameters()}
            found = torch.func.functional_call(ours, other, (x, x, x))[0]
            ours.load_state_dict(other)
            self.assertLess((found - ours(x, x, x)[0]).abs().max(), 1e-6 * found.abs().max())

    def test_transforms(self):
        theirs, ours = pair(batch_first=True)
        x = torch.randn(3, 2, 5, 16)

        def loss(module):
            def of(parameters, x):
                return torch.func.functional_call(module, parameters, (x, x, x))[0].square().sum()
            return torch.vmap(torch.func.grad(of), (None, 0))(dict(module.named_parameters()), x)

        expected, found = loss(theirs.train()), loss(ours.train())
        for name, grad in expected.items():
            self.assertLess((grad - found[name]).abs().max() / (1 + grad.abs().max()), 1e-4, name)

    def test_errors(self):
        _, ours = pair(batch_first=True)
        x = torch.randn(2, 5, 16)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                with self.assertRaisesRegex(ValueError, "query: found width 15"):
                    ours(x[..., 1:], x, x)
                with self.assertRaisesRegex(ValueError, "key_padding_mask"):
                    ours(x, x, x, torch.zeros(2, 4, dtype=torch.bool))
                with self.assertRaisesRegex(ValueError, "attn_mask"):
                    ours(x, x, x, attn_mask=torch.zeros(1, 5, dtype=torch.bool))
                with self.assertRaisesRegex(TypeError, "attn_mask"):
                    ours(x, x, x, attn_mask=torch.zeros(5, 5, dtype=torch.int64))

    def test_opcheck(self):
        for dtype, grad, weights in itertools.product((torch.float32, torch.bfloat16), (False, True), (False, True)):
            x = torch.randn(2, 5, 16, dtype=dtype)
            p = [p.detach().to(dtype).requires_grad_(grad) for p in pair()[0].parameters()]
            close = {"atol": 5e-2, "rtol": 5e-2} if dtype == torch.bfloat16 else {}
            torch.library.opcheck(torch.ops.headwise.multi_head_attention.default, (
                x, x, x, 4, p[0], None, None, None, p[1], None, None, p[2], p[3], False, None, None, weights, True,
                False, True), **close)


class Layers(unittest.TestCase):
    def setUp(self):
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.theirs = drawn(torch.nn.TransformerEncoder(layer, 2)).eval()
        self.ours = headwise.torch.convert(copy.deepcopy(self.theirs))
        self.x = torch.randn(3, 6, 32)
        self.padding = torch.zeros(3, 6, dtype=torch.bool)
        self.padding[1, 4:] = True

    def test_encoder(self):
        calls = []
        for module in self.ours.modules():
            if isinstance(module, headwise.torch.MultiheadAttention):
                module.register_forward_hook(lambda *_: calls.append(1))
        with torch.no_grad():
            for kwargs in ({}, {"src_key_padding_mask": self.padding},
                           {"mask": torch.nn.Transformer.generate_square_subsequent_mask(6), "is_causal": True}):
                calls.clear()
                expected, found = self.theirs(self.x, **kwargs), self.ours(self.x, **kwargs)
                self.assertEqual(len(calls), 2)
                seen = ~self.padding if "src_key_padding_mask" in kwargs else slice(None)
                self.assertLess((expected[seen] - found[seen]).abs().max(), 1e-5)

    def test_training_follows_torch(self):
        losses = []
        for model in (self.theirs.train(), self.ours.train()):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            losses.append([])
            for _ in range(5):
                loss = model(self.x, src_key_padding_mask=self.padding)[~self.padding].square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        self.assertTrue(all(abs(a - b) < 1e-4 for a, b in zip(*losses)), losses)
        with torch.no_grad():
            found, expected = self.ours.eval()(self.x), self.theirs.eval()(self.x)
        self.assertLess((found - expected).abs().max(), 1e-3)

    def test_decoder(self):
        layer = torch.nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
        ours = headwise.torch.convert(copy.deepcopy(layer))
        memory = torch.randn(3, 9, 32)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(6)
        self.assertLess((layer(self.x, memory, mask) - ours(self.x, memory, mask)).abs().max(), 1e-5)

    def test_compiled(self):
        with torch.no_grad():
            expected = self.ours(self.x)
            torch.testing.assert_close(torch.compile(self.ours)(self.x), expected, atol=1e-6, rtol=1e-6)
            exported = torch.export.export(self.ours, (self.x,)).module()
            torch.testing.assert_close(exported(self.x), expected, atol=1e-6, rtol=1e-6)
        grads = []
        for model in (self.ours.train(), torch.compile(self.ours, fullgraph=True)):
            self.ours.zero_grad()
            model(self.x).square().mean().backward()
            grads.append([p.grad.clone() for p in self.ours.parameters()])
        torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-4)


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(run_tests())
