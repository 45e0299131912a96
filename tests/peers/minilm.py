#!/usr/bin/env python3
"""Compares everything that `headwise see` computes of MiniLM with transformers and torch.

    HEADWISE_BUILD=build/dev HEADWISE_MODEL=DIR python tests/peers/minilm.py

Token ids, the hidden states of every layer, the mean-pooled sentence embedding and the weights of all 72 heads, at every
position of every text of tests/fixtures/make_minilm.py. torch runs in float64 for the bounds; its own float32 results
are compared too, to the hidden states' bound and, for weights, to the bound plus what float32 costs torch itself.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors import safe_open
from transformers import BertModel, BertTokenizer

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "fixtures"))
import make_minilm  # noqa: E402

BUILD = pathlib.Path(os.environ.get("HEADWISE_BUILD", ROOT / "build" / "dev"))
MODEL = os.environ["HEADWISE_MODEL"]
HIDDEN_BOUND, WEIGHT_BOUND = 2e-5, 1e-6


def see(text, path):
    subprocess.run([BUILD / "apps" / "headwise", "see", "--model", MODEL, "--text", "-", "--out", path],
                   input=text.encode(), stdout=subprocess.DEVNULL, check=True)
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["tokens"])


def run(model, encoded):
    with torch.no_grad():
        out = model(**encoded, output_hidden_states=True, output_attentions=True)
    hidden = torch.cat(out.hidden_states).double().numpy()
    return {"hidden_states": hidden, "attention": torch.cat(out.attentions).double().numpy(),
            "sentence_embedding": hidden[-1].mean(axis=0)}


def compare(found, exact, single):
    """The largest differences from float64, as a line; raises AssertionError past a bound."""
    worst = {name: np.abs(found[name] - exact[name]).max() for name in exact}
    from_single = {name: np.abs(found[name] - single[name]).max() for name in exact}
    single_costs = np.abs(single["attention"] - exact["attention"]).max()
    rows = np.abs(found["attention"].sum(axis=-1, dtype=np.float64) - 1).max()
    for differences in (worst, from_single):
        assert differences["hidden_states"] <= HIDDEN_BOUND, differences
        assert differences["sentence_embedding"] <= HIDDEN_BOUND, differences
    assert worst["attention"] <= WEIGHT_BOUND, worst
    assert from_single["attention"] <= WEIGHT_BOUND + single_costs, from_single
    assert rows <= WEIGHT_BOUND, f"rows sum to 1 only within {rows}"
    return (f"hidden {worst['hidden_states']:.1e} embedding {worst['sentence_embedding']:.1e} "
            f"weights {worst['attention']:.1e} (torch float32 {single_costs:.1e}) row sums {rows:.1e}")


def compare_texts(tokenizer):
    single = BertModel.from_pretrained(MODEL, attn_implementation="eager").eval()
    exact = BertModel.from_pretrained(MODEL, attn_implementation="eager").eval().double()
    with tempfile.TemporaryDirectory() as folder:
        for text in make_minilm.TEXTS + make_minilm.MORE_TEXTS:
            encoded = tokenizer(text, truncation=True, max_length=make_minilm.MAX_TOKENS, return_tensors="pt")
            found, tokens = see(text, os.path.join(folder, "out.safetensors"))
            ids = encoded["input_ids"][0]
            assert found["ids"].tolist() == ids.tolist(), (text, tokens)
            assert tokens == tokenizer.convert_ids_to_tokens(ids), (text, tokens)
            print(f"{len(ids):4} tokens: {compare(found, run(exact, encoded), run(single, encoded))}", flush=True)


def main():
    torch.set_num_threads(2)
    tokenizer = BertTokenizer.from_pretrained(MODEL)
    compare_texts(tokenizer)


if __name__ == "__main__":
    sys.exit(main())
