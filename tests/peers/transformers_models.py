#!/usr/bin/env python3
"""Models of transformers by headwise: MiniLM, and small random Llama, Mistral, GPT-2 and ViT.

    HEADWISE_BUILD=build/dev HEADWISE_MODEL=DIR python tests/peers/transformers_models.py [TEST...]

Three ways: attn_implementation="headwise", convert() and enable(); what is expected is transformers' own "eager".
"""
import contextlib
import copy
import os
import sys
import unittest

from support import run_tests

import torch
import transformers

import headwise.torch
import headwise.transformers

headwise.transformers.register()
BOUND = 1e-5
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = SMALL | {"intermediate_size": 96, "vocab_size": 99, "max_position_embeddings": 128}


def eager_models():
    torch.manual_seed(0)
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, num_key_value_heads=2))
    yield "mistral", transformers.MistralForCausalLM(transformers.MistralConfig(
        **TEXT, num_key_value_heads=2, sliding_window=5))
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=99, n_positions=128))


def ways(model):
    """The model in each of the three ways, in eval mode."""
    by_name = copy.deepcopy(model)
    by_name.set_attn_implementation("headwise")
    yield "name", by_name, contextlib.nullcontext()
    converted = copy.deepcopy(model)
    converted.set_attn_implementation("sdpa")
    yield "convert", headwise.torch.convert(converted), contextlib.nullcontext()
    if converted.config._attn_implementation != "headwise":
        raise AssertionError(converted.config._attn_implementation)
    sdpa = copy.deepcopy(model)
    sdpa.set_attn_implementation("sdpa")
    yield "enable", sdpa, headwise.torch.enabled()


class Models(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def close(self, found, expected, *what):
        self.assertLess((found - expected).abs().max(), BOUND, what)

    def each_text_model(self):
        for name, eager in eager_models():
            eager.set_attn_implementation("eager")
            for way, model, context in ways(eager.eval()):
                with self.subTest(model=name, way=way), context:
                    yield eager, model

    def test_logits(self):
        ids = torch.randint(99, (3, 17))
        left = torch.ones(3, 17, dtype=torch.long)
        left[1, :6] = 0
        for eager, model in self.each_text_model():
            with torch.no_grad():
                self.close(model(ids).logits, eager(ids).logits)
                found, expected = (m(ids, attention_mask=left).logits[left.bool()] for m in (model, eager))
                self.close(found, expected, "left padding")

    def test_generation(self):
        ids = torch.randint(99, (2, 9))
        left = torch.ones(2, 9, dtype=torch.long)
        left[1, :4] = 0
        for eager, model in self.each_text_model():
            for mask in (torch.ones_like(left), left):
                options = {"attention_mask": mask, "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0,
                           "eos_token_id": None}
                self.assertEqual(model.generate(ids, **options).tolist(), eager.generate(ids, **options).tolist())

    def test_weights_on_demand(self):
        ids = torch.randint(99, (3, 17))
        for _, eager in eager_models():
            eager.set_attn_implementation("eager")
            model = copy.deepcopy(eager.eval())
            model.set_attn_implementation("headwise")
            with torch.no_grad():
                found, expected = model(ids, output_attentions=True), eager(ids, output_attentions=True)
                self.assertEqual(len(found.attentions), 2)
                for a, b in zip(found.attentions, expected.attentions):
                    self.close(a, b)
                self.assertTrue(torch.equal(found.logits, model(ids).logits))

    def test_training(self):
        ids = torch.randint(99, (3, 17))
        for eager, model in self.each_text_model():
            losses = []
            for m in (copy.deepcopy(eager), model):
                for layer in m.modules():
                    if isinstance(layer, torch.nn.Dropout):
                        layer.p = 0.0
                    if isinstance(getattr(layer, "attn_dropout", None), float):
                        layer.attn_dropout = 0.0
                m.train()
                optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
                losses.append([])
                for _ in range(5):
                    loss = m(ids, labels=ids).loss
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses[-1].append(loss.item())
            self.assertTrue(all(abs(a - b) < 1e-4 for a, b in zip(*losses)), losses)

    def test_vit(self):
        eager = transformers.ViTForImageClassification(transformers.ViTConfig(
            **SMALL, intermediate_size=96, image_size=32, patch_size=8)).eval()
        eager.set_attn_implementation("eager")
        images = torch.randn(2, 3, 32, 32)
        for way, model, context in ways(eager):
            with self.subTest(way=way), context, torch.no_grad():
                self.close(model(images).logits, eager(images).logits)

    def test_minilm(self):
        folder = os.environ["HEADWISE_MODEL"]
        eager = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
        tokenizer = transformers.BertTokenizer.from_pretrained(folder)
        texts = ["A short one.", "Attention is all you need, they said, and wrote a longer sentence about it."]
        encoded = tokenizer(texts, padding=True, return_tensors="pt")
        seen = encoded["attention_mask"].bool()
        for way, model, context in ways(eager):
            with self.subTest(way=way), context, torch.no_grad():
                self.close(model(**encoded).last_hidden_state[seen], eager(**encoded).last_hidden_state[seen])
                if way != "enable":
                    found, expected = (m(**encoded, output_attentions=True).attentions for m in (model, eager))
                    for a, b in zip(found, expected):  # each up to 7e-6 from the same model in float64
                        self.assertLess((a[0] - b[0]).abs().max(), 2 * BOUND)

    def test_compiled(self):
        _, model = next(eager_models())
        model.eval().set_attn_implementation("headwise")
        ids = torch.randint(99, (3, 17))
        with torch.no_grad():
            self.close(torch.compile(model)(ids).logits, model(ids).logits)

    def test_refused(self):
        config = transformers.Gemma2Config(**TEXT, num_key_value_heads=2, head_dim=16)
        model = transformers.Gemma2ForCausalLM(config).eval()
        self.assertNotEqual(headwise.torch.convert(model).config._attn_implementation, "headwise")
        model.set_attn_implementation("headwise")
        with self.assertRaisesRegex(ValueError, "softcap.*eager"):
            model(torch.randint(99, (1, 5)))
        q = torch.randn(1, 2, 3, 4)
        with self.assertRaisesRegex(ValueError, "s_aux.*eager"):
            headwise.transformers.attention(torch.nn.Module(), q, q, q, None, s_aux=torch.zeros(2))


if __name__ == "__main__":
    sys.exit(run_tests())
