"""scaled_dot_product_attention: torch's arguments, and the answers of docs/torch_differences.md."""
import unittest

import numpy as np

import headwise
import reference

attend = headwise.scaled_dot_product_attention


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


Q, K, V = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 6, seed=2)
CAUSAL = np.tri(5, 7, dtype=bool)


class Attention(unittest.TestCase):
    def expect(self, found, bias=0.0, scale=None, k=K, v=V):
        np.testing.assert_allclose(found, reference.attention(Q, k, v, bias, scale)[0], rtol=0, atol=1e-6)

    def test_definition(self):
        self.expect(attend(Q, K, V))
        self.expect(attend(query=Q, key=K, value=V, scale=0.5), scale=0.5)
        self.expect(attend(Q, K, V, scale=0), scale=0.0)

    def test_boolean_mask_keeps(self):
        for shape in [(5, 7), (1, 7), (2, 1, 5, 7), (4, 5, 7)]:
            keep = np.random.default_rng(3).random(shape) < 0.6
            self.expect(attend(Q, K, V, keep), reference.bias_of(keep))

    def test_floating_mask_is_added(self):
        bias = draw(5, 7, seed=4)
        bias[:, 2] = -np.inf
        self.expect(attend(Q, K, V, bias), bias)

    def test_causal(self):
        self.expect(attend(Q, K, V, is_causal=True), reference.bias_of(CAUSAL))
        keep = np.random.default_rng(5).random((5, 7)) < 0.7
        self.expect(attend(Q, K, V, keep, is_causal=True), reference.bias_of(CAUSAL & keep))

    def test_masked_means_absent(self):
        k, v = K.copy(), V.copy()
        k[:, :, 3], v[:, :, 3] = np.nan, np.inf
        keep = np.ones((5, 7), bool)
        keep[:, 3] = False
        self.expect(attend(Q, k, v, keep), reference.bias_of(keep))
        keep[2] = False
        self.assertTrue((attend(Q, k, v, keep)[:, :, 2] == 0).all())

    def test_grouped_heads(self):
        k, v = K[:, :2], V[:, :2]
        self.expect(attend(Q, k, v, enable_gqa=True), k=k.repeat(2, 1), v=v.repeat(2, 1))
        with self.assertRaises(ValueError):
            attend(Q, k, v)

    def test_dropout(self):
        headwise.manual_seed(1)
        first = attend(Q, K, V, dropout_p=0.5)
        second = attend(Q, K, V, dropout_p=0.5)
        self.assertFalse(np.array_equal(first, second))
        headwise.manual_seed(1)
        np.testing.assert_array_equal(attend(Q, K, V, dropout_p=0.5), first)
        self.assertTrue((attend(Q, K, V, dropout_p=1.0) == 0).all())

    def test_refusals(self):
        for message, call in {
            r"^key: found d_head = 6 in shape": lambda: attend(Q, V, V),
            r"^value: found T_k = 5 in shape": lambda: attend(Q, K, Q),
            r"^query: found 1 dims in shape": lambda: attend(Q[0, 0, 0], K, V),
            r"^attn_mask: found shape \(5, 6\)": lambda: attend(Q, K, V, np.ones((5, 6), bool)),
            r"^dropout_p: found 2": lambda: attend(Q, K, V, dropout_p=2),
        }.items():
            with self.assertRaisesRegex(ValueError, message):
                call()
        for bad in (True, "0.5", None):
            with self.assertRaises(TypeError):
                attend(Q, K, V, dropout_p=bad)
        with self.assertRaises(TypeError):
            attend(Q, K, V, is_causal=1)
        with self.assertRaises(ValueError):  # more dims than the library has
            attend(np.zeros((1,) * 20, np.float32), K, V)

    def test_plan(self):
        plan = headwise.explain_attention(Q, K, V, is_causal=True)
        self.assertIn(plan.kernel, headwise.available_kernels())
        self.assertIn(plan.kernel, repr(plan))
        self.assertGreater(plan.flops, 0)
        self.assertGreaterEqual(plan.n_tasks, plan.n_threads)
        with self.assertRaisesRegex(ValueError, "^key: "):
            headwise.explain_attention(Q, V, V)


if __name__ == "__main__":
    unittest.main()
