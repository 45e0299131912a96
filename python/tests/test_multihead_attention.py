"""MultiheadAttention: torch's module, its parameters, and files."""
import tempfile
import unittest
from pathlib import Path

import ml_dtypes
import numpy as np

import headwise
import reference
from headwise import MultiheadAttention

X = headwise.randn(2, 4, 8)


def seeded(*args, **kwargs):
    headwise.manual_seed(0)
    return MultiheadAttention(*args, **kwargs)


class Forward(unittest.TestCase):
    def expect(self, found, expected):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)

    def test_definition(self):
        module = seeded(8, 2, batch_first=True)
        output, weights = module(X, X, X)
        expected, per_head = reference.module(module.state_dict(), 2, X, X, X)
        self.expect(output, expected)
        self.expect(weights, per_head.mean(1))
        self.expect(module(X, X, X, average_attn_weights=False)[1], per_head)
        plain, none = module.forward(X, X, X, need_weights=False)
        self.assertIsNone(none)
        np.testing.assert_array_equal(plain, output)

    def test_layouts(self):
        first, second = seeded(8, 2, batch_first=True), seeded(8, 2)
        output, weights = second(*[X.swapaxes(0, 1)] * 3)
        np.testing.assert_array_equal(output.swapaxes(0, 1), first(X, X, X)[0])
        self.assertEqual(weights.shape, (2, 4, 4))
        output, weights = second(X[0], X[0], X[0])
        np.testing.assert_array_equal(output, first(X, X, X)[0][0])
        self.assertEqual(weights.shape, (4, 4))

    def test_boolean_masks_hide(self):
        module = seeded(8, 2, batch_first=True)
        state = module.state_dict()
        hidden = np.triu(np.ones((4, 4), bool), 1)
        padding = np.array([[False, False, False, True], [False, False, False, False]])
        causal = reference.module(state, 2, X, X, X, reference.bias_of(~hidden))[0]
        self.expect(module(X, X, X, attn_mask=hidden)[0], causal)
        self.expect(module(X, X, X, is_causal=True)[0], causal)
        bias = reference.bias_of(~padding)[:, None, None]
        self.expect(module(X, X, X, padding)[0], reference.module(state, 2, X, X, X, bias)[0])
        added = headwise.randn(4, 4, 4)  # (B * num_heads, T_q, T_k)
        both = module(X, X, X, key_padding_mask=padding, attn_mask=added)[0]
        self.expect(both, reference.module(state, 2, X, X, X, added.reshape(2, 2, 4, 4) + bias)[0])
        output, weights = module(X, X, X, np.ones((2, 4), bool))
        self.assertTrue((output == state["out_proj.bias"]).all() and (weights == 0).all())

    def test_appended_columns_and_widths(self):
        module = MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, kdim=6, vdim=10, batch_first=True)
        output, weights = module(X, headwise.randn(2, 3, 6), headwise.randn(2, 3, 10))
        self.assertEqual((output.shape, weights.shape), ((2, 4, 8), (2, 4, 5)))

    def test_sixteen_bits(self):
        for dtype in (np.float16, ml_dtypes.bfloat16):
            x = X.astype(dtype)
            output, weights = MultiheadAttention(8, 2, dtype=dtype)(x, x, x)
            self.assertEqual((output.dtype, weights.dtype), (np.dtype(dtype), np.dtype(dtype)))

    def test_dropout(self):
        module = seeded(8, 2, dropout=0.5)
        self.assertTrue(module.training)
        headwise.manual_seed(1)
        first = module(X, X, X)[1]
        self.assertFalse(np.array_equal(module(X, X, X)[1], first))
        headwise.manual_seed(1)
        np.testing.assert_array_equal(module(X, X, X)[1], first)
        self.assertIs(module.eval(), module)
        np.testing.assert_array_equal(module(X, X, X)[0], seeded(8, 2)(X, X, X)[0])
        self.assertTrue(module.train().training)


class Construction(unittest.TestCase):
    def test_properties(self):
        module = MultiheadAttention(12, 3, 0.25, False, kdim=6, batch_first=True, dtype="float64")
        self.assertEqual((module.embed_dim, module.num_heads, module.head_dim), (12, 3, 4))
        self.assertEqual((module.kdim, module.vdim, module.dropout), (6, 12, 0.25))
        self.assertEqual((module.batch_first, module.dtype, module.num_kv_heads), (True, "float64", 3))
        self.assertEqual(module.parameter_count(), 3 * 144 + 72)
        self.assertEqual(eval(repr(module), {"MultiheadAttention": MultiheadAttention}).kdim, 6)

    def test_refusals(self):
        for message, args in {
            "^embed_dim: found 10, which num_heads 4 does not divide": (10, 4),
            "^embed_dim: found -8, expected at least 1": (-8, 2),
            "^num_heads: found 0, expected at least 1": (8, 0),
            "^dropout: found 1.5": (8, 2, 1.5),
        }.items():
            with self.assertRaisesRegex(ValueError, message):
                MultiheadAttention(*args)
        with self.assertRaisesRegex(TypeError, "^dropout: found True"):
            MultiheadAttention(8, 2, True)
        with self.assertRaisesRegex(ValueError, "^kdim: found 0"):
            MultiheadAttention(8, 2, kdim=0)

    def test_seeds(self):
        headwise.manual_seed(3)
        a = headwise.randn(2, 3)
        headwise.manual_seed(3)
        np.testing.assert_array_equal(headwise.randn((2, 3)), a)
        headwise.manual_seed(-1)
        a = headwise.randn(5, dtype="float64")
        headwise.manual_seed(2**64 - 1)
        np.testing.assert_array_equal(headwise.randn(5, dtype="float64"), a)
        self.assertEqual(headwise.randn().shape, ())
        for bad, error in [((-1,), ValueError), ((2, 2.5), TypeError), ((2, "3"), TypeError)]:
            with self.assertRaisesRegex(error, "^size: "):
                headwise.randn(*bad)


class Parameters(unittest.TestCase):
    def test_there_and_back(self):
        module, other = seeded(8, 2), MultiheadAttention(8, 2)
        state = module.state_dict()
        self.assertEqual(list(state), ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"])
        other.load_state_dict(state)
        np.testing.assert_array_equal(other(X, X, X)[0], module(X, X, X)[0])
        state["in_proj_weight"][:] = 0  # a copy
        self.assertTrue(module.state_dict()["in_proj_weight"].any())
        strided = {name: np.repeat(value.astype(np.float64), 2, 0)[::2] for name, value in module.state_dict().items()}
        other.load_state_dict(strided)
        np.testing.assert_array_equal(other(X, X, X)[0], module(X, X, X)[0])

    def test_loading_keeps_the_mode_and_draws_nothing(self):
        module = MultiheadAttention(8, 2, dropout=0.5).eval()
        headwise.manual_seed(0)
        module.load_state_dict(module.state_dict())
        self.assertFalse(module.training)
        drawn = headwise.randn(3)
        headwise.manual_seed(0)
        np.testing.assert_array_equal(headwise.randn(3), drawn)

    def test_refusals(self):
        module = MultiheadAttention(8, 2)
        before = module.state_dict()
        for message, change in {
            "missing in_proj_bias": {"in_proj_bias": None},
            "unexpected extra": {"extra": X},
            r"^in_proj_bias: found shape \(8,\)": {"in_proj_bias": X[0, 0]},
        }.items():
            state = {name: value for name, value in (before | change).items() if value is not None}
            with self.assertRaisesRegex(ValueError, message):
                module.load_state_dict(state)
        with self.assertRaisesRegex(TypeError, "^in_proj_bias: found dtype i64"):
            module.load_state_dict(before | {"in_proj_bias": np.zeros(24, np.int64)})
        with self.assertRaisesRegex(TypeError, "^in_proj_bias: found list"):
            module.load_state_dict(before | {"in_proj_bias": [0.0] * 24})
        with self.assertRaisesRegex(TypeError, "^state_dict: found the key 1"):
            module.load_state_dict({1: X})
        for name, value in module.state_dict().items():
            np.testing.assert_array_equal(value, before[name])

    def test_files(self):
        module = seeded(8, 2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "module.safetensors"
            module.save(path)
            np.testing.assert_array_equal(MultiheadAttention.load(str(path), 2)(X, X, X)[0], module(X, X, X)[0])
            loaded = MultiheadAttention.load(path, num_heads=2, dropout=0.5, batch_first=True)
            self.assertTrue(loaded.batch_first and loaded.dropout == 0.5)
            with self.assertRaisesRegex(ValueError, "^num_heads: found 3"):
                MultiheadAttention.load(path, 3)
            with self.assertRaisesRegex(OSError, "prefix"):
                MultiheadAttention.load(path, 2, "encoder.")
            with self.assertRaisesRegex(OSError, "no such file"):
                MultiheadAttention.load(path.with_name("absent"), 2)
            path.write_bytes(b"\xff" * 100)
            with self.assertRaises(OSError):
                MultiheadAttention.load(path, 2)


if __name__ == "__main__":
    unittest.main()
