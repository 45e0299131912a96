"""Gradients: against central differences, and what is refused."""
import unittest

import numpy as np

import headwise

forward = headwise.scaled_dot_product_attention_with_state
backward = headwise.scaled_dot_product_attention_backward


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


Q, K, V, D = draw(1, 4, 3, 5), draw(1, 2, 4, 5, seed=1), draw(1, 2, 4, 2, seed=2), draw(1, 4, 3, 2, seed=3)
BIAS = draw(3, 4, seed=4)


class Backward(unittest.TestCase):
    def test_central_differences(self):
        options = {"enable_gqa": True, "dropout_p": 0.2, "dropout_seed": 7, "is_causal": True}
        arrays = [Q, K, V, BIAS]
        found = backward(D, Q, K, V, *forward(*arrays, **options), BIAS, **options)
        for n, (x, gradient) in enumerate(zip(arrays, found)):
            self.assertEqual(gradient.shape, x.shape)
            for at in np.ndindex(x.shape):
                sides = []
                for step in (1e-5, -1e-5):
                    moved = [a.copy() for a in arrays]
                    moved[n][at] += step
                    sides.append((forward(*moved, **options)[0] * D).sum())
                self.assertAlmostEqual(gradient[at], (sides[0] - sides[1]) / 2e-5, places=7)

    def test_state(self):
        out, row_max, row_sum = forward(Q, K, V, enable_gqa=True)
        np.testing.assert_array_equal(out, headwise.scaled_dot_product_attention(Q, K, V, enable_gqa=True))
        self.assertEqual(row_max.shape, (1, 4, 3))
        self.assertTrue((row_sum >= 1).all())

    def test_boolean_mask_has_no_gradient(self):
        keep = np.ones((3, 4), bool)
        keep[1] = False
        state = forward(Q, K, V, keep, enable_gqa=True)
        dq, _, _, d_mask = backward(D, Q, K, V, *state, keep, enable_gqa=True)
        self.assertIsNone(d_mask)
        self.assertTrue((dq[:, :, 1] == 0).all())

    def test_what_does_not_fit(self):
        state = forward(Q, K, V, enable_gqa=True)
        with self.assertRaisesRegex(ValueError, "grad_output"):
            backward(D[:, :, :2], Q, K, V, *state, enable_gqa=True)
        with self.assertRaisesRegex(ValueError, "output"):
            backward(D, Q, K, V, D[..., :1], *state[1:], enable_gqa=True)
        with self.assertRaisesRegex(TypeError, "grad_output"):
            backward(D.astype(np.float32), Q, K, V, *state, enable_gqa=True)

    def test_dt04_no_second_derivatives(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        q, k, v, d = (torch.ones(1, 1, 3, 2, dtype=torch.float64) for _ in range(4))
        state = forward(q, k, v)
        q.requires_grad_()
        with self.assertRaises(Exception):
            backward(d, q, k, v, *state)


if __name__ == "__main__":
    unittest.main()
