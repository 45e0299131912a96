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


class ModuleBackward(unittest.TestCase):
    def test_central_differences(self):
        module = headwise.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True, dtype="float64").eval()
        arrays = [draw(2, 3, 4), draw(2, 6, 3, seed=1), draw(2, 6, 5, seed=2)]
        output, weights, state = module.forward_with_state(*arrays)
        np.testing.assert_array_equal(output, module(*arrays)[0])
        d_output, d_weights = draw(*output.shape, seed=3), draw(*weights.shape, seed=4)
        *inputs, parameters = module.backward(state, d_output, d_weights)

        def loss():
            found = module(*arrays)
            return (found[0] * d_output).sum() + (found[1] * d_weights).sum()

        def check(x, gradient, changed=lambda: None):
            self.assertEqual(gradient.shape, x.shape)
            for at in list(np.ndindex(x.shape))[::5]:
                sides, before = [], x[at]
                for step in (1e-5, -1e-5):
                    x[at] = before + step
                    changed()
                    sides.append(loss())
                x[at] = before
                changed()
                self.assertAlmostEqual(gradient[at], (sides[0] - sides[1]) / 2e-5, places=7)

        for x, gradient in zip(arrays, inputs):
            check(x, gradient)
        values = module.state_dict()
        self.assertEqual(list(parameters), list(values))
        for name, gradient in parameters.items():
            check(values[name], gradient, lambda: module.load_state_dict(values))

    def test_what_is_wrong_is_said(self):
        module = headwise.MultiheadAttention(4, 2)
        x = draw(3, 1, 4).astype("float32")
        state = module.forward_with_state(x, x, x, need_weights=False)[2]
        with self.assertRaisesRegex(ValueError, "d_output: found shape"):
            module.backward(state, x[:2])
        with self.assertRaisesRegex(ValueError, "d_weights: found shape"):
            module.backward(state, x, draw(1, 3, 3).astype("float32"))


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
