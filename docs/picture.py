#!/usr/bin/env python3
"""Draws docs/see.svg: what a terminal shows of the heat map of `headwise see`.

    docs/picture.py HEADWISE MODEL [TEXT]
"""
import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

TEXT = "The animal didn't cross the street because it was too tired."
CELL_W, CELL_H, MARGIN = 8, 17, 12
BACKGROUND, FOREGROUND = "#16181d", "#d8dee9"
PALETTE = {16: "#000000", 231: "#ffffff"}  # of the 256 colours, those that letters have
PIECE = re.compile(r"\x1b\[([\d;]*)m|([^\x1b]+)")


def runs(line):
    """The pieces of a line with one style each: text, colour, background."""
    fore = back = None
    for codes, text in PIECE.findall(line):
        if text:
            yield text, fore, back
            continue
        numbers = [int(n or 0) for n in codes.split(";")]
        while numbers:
            code = numbers.pop(0)
            if code in (38, 48) and numbers[0] == 2:
                colour = "#%02x%02x%02x" % tuple(numbers[1:4])
                del numbers[:4]
                fore, back = (colour, back) if code == 38 else (fore, colour)
            elif code == 38 and numbers[0] == 5:
                fore = PALETTE[numbers[1]]
                del numbers[:2]
            elif code == 0:
                fore = back = None


def draw(lines):
    width = max(len(PIECE.sub(r"\2", line)) for line in lines)
    size = (width * CELL_W + 2 * MARGIN, len(lines) * CELL_H + 2 * MARGIN)
    boxes, texts = [], []
    for row, line in enumerate(lines):
        column, y = 0, MARGIN + row * CELL_H
        for text, fore, back in runs(line):
            x = MARGIN + column * CELL_W
            if back:
                boxes.append(f'<rect x="{x}" y="{y}" width="{len(text) * CELL_W}" height="{CELL_H}" fill="{back}"/>')
            fill = f' fill="{fore}"' if fore else ""
            for word in re.finditer(r"\S+", text):  # each at its column, whatever the font's width
                texts.append(f'<text x="{x + word.start() * CELL_W}" y="{y + 13}" '
                             f'textLength="{len(word[0]) * CELL_W}"{fill}>{escape(word[0])}</text>')
            column += len(text)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}">',
        f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>', *boxes,
        f'<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="13" '
        f'fill="{FOREGROUND}">', *texts, "</g></svg>\n"])


def main():
    tool, model, *text = sys.argv[1:]
    shown = subprocess.run([tool, "see", "--model", model, "--text", *(text or [TEXT]), "--color", "always"],
                           check=True, stdout=subprocess.PIPE, text=True,
                           env=os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}).stdout
    lines = shown.rstrip("\n").split("\n")
    start = next(i for i, line in enumerate(lines) if re.match(r"(\x1b\[[\d;]*m)*Layer \d", line))
    Path(__file__).with_name("see.svg").write_text(draw(lines[start:]), encoding="utf-8")


if __name__ == "__main__":
    main()
