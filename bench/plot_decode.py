#!/usr/bin/env python3
"""Draws decode times against the limit of the GPU's memory, as a picture for the README.

    python3 bench/plot_decode.py bench/results/h200-attention.json --out bench/results/h200-decode.svg

Every decode of bf16 keys with the usual heads is a point: the time that its bytes need at the measured bandwidth, and the
time it took, both on logarithmic axes; on the line a decode is as fast as the memory. Page sizes stand beside each other.
No package is needed: the picture is written as text.
"""

import argparse
import json
import math
import re
from pathlib import Path

PLAIN_DECODE = re.compile(r"decode/batch=(\d+)/keys=(\d+)/page=(\d+)$")
COLOURS = {1: "#d1495b", 16: "#00798c", 64: "#edae49"}  # by page size
SHIFTS = {1: -9, 16: 0, 64: 9}  # points of one limit, beside each other

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 52  # margins around the axes


def points_of(record):
    """(page size, "batch x keys", limit, time) of every plain decode, in microseconds."""
    points = []
    for result in record["results"]:
        found = PLAIN_DECODE.match(result["name"])
        if found:
            batch, keys, page = map(int, found.groups())
            points.append((page, f"{batch} x {keys}", result["limit_us"], result["median_us"]))
    return points


class Axes:
    """Places of microseconds in the picture, on the same logarithmic scale in both directions."""

    def __init__(self, points):
        numbers = [number for *_, limit, time in points for number in (limit, time)]
        self.low = math.log10(min(numbers)) - 0.1
        self.high = math.log10(max(numbers)) + 0.3  # room for names

    def share(self, us):
        return (math.log10(us) - self.low) / (self.high - self.low)

    def x(self, us):
        return LEFT + self.share(us) * (WIDTH - LEFT - RIGHT)

    def y(self, us):
        return HEIGHT - BOTTOM - self.share(us) * (HEIGHT - TOP - BOTTOM)

    def ticks(self):
        candidates = [m * 10**e for e in range(-1, 7) for m in (1, 2, 5)]
        return [us for us in candidates if 0 <= self.share(us) <= 1]


def text(x, y, words, anchor="middle", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{words}</text>'


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def dot(x, y, page):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{COLOURS[page]}"/>'


def grid(axes):
    parts = []
    for us in axes.ticks():
        x, y = axes.x(us), axes.y(us)
        parts.append(line(x, TOP, x, HEIGHT - BOTTOM, 'stroke="#ddd"'))
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, 'stroke="#ddd"'))
        parts.append(text(x, HEIGHT - BOTTOM + 16, f"{us:g}"))
        parts.append(text(LEFT - 6, y + 4, f"{us:g}", "end"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "limit of the memory, us"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(text(16, middle, "time, us", extra=f'transform="rotate(-90 16 {middle:.1f})"'))
    return parts


def limit_line(axes):
    ends = (10**axes.low, 10**axes.high)
    style = 'stroke="#444" stroke-dasharray="5 4"'
    return [line(axes.x(ends[0]), axes.y(ends[0]), axes.x(ends[1]), axes.y(ends[1]), style)]


def dots(points, axes):
    parts = []
    for page, _, limit, time in points:
        parts.append(dot(axes.x(limit) + SHIFTS[page], axes.y(time), page))
    return parts


def labels(points, axes):
    """Batch x keys above the slowest point of each limit; of problems with equal limits, one above the other."""
    tops, names = {}, {}
    for _, name, limit, time in points:
        near = round(axes.x(limit) / 8)
        tops[near] = min(tops.get(near, HEIGHT), axes.y(time))
        names.setdefault(near, {})[name] = axes.x(limit)
    parts = []
    for near, at in names.items():
        for row, (name, x) in enumerate(at.items()):
            anchor = "end" if x > WIDTH - RIGHT - 40 else "middle"
            parts.append(text(x, tops[near] - 10 - 13 * row, name, anchor))
    return parts


def legend(points):
    parts = [line(LEFT + 14, TOP + 14, LEFT + 38, TOP + 14, 'stroke="#444" stroke-dasharray="5 4"')]
    parts.append(text(LEFT + 46, TOP + 18, "as fast as the memory", "start"))
    for row, page in enumerate(sorted({page for page, *_ in points})):
        y = TOP + 34 + 18 * row
        parts.append(dot(LEFT + 26, y, page))
        parts.append(text(LEFT + 46, y + 4, f"pages of {page} token{'s' if page > 1 else ''}", "start"))
    return parts


def title(record):
    gpu = record["machine"]["gpu"]
    words = f"Decode on an {gpu['name']}, batch x keys; reads {gpu['read_gbps'] / 1e3:.2f} TB/s; commit {record['commit']}"
    return [text(WIDTH / 2, 22, words, extra='font-size="14"')]


def picture(record):
    points = points_of(record)
    axes = Axes(points)
    parts = title(record) + grid(axes) + limit_line(axes) + dots(points, axes) + labels(points, axes) + legend(points)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, background, *parts, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file that quire bench attention --device cuda wrote with --json")
    parser.add_argument("--out", type=Path, required=True, help="the picture")
    args = parser.parse_args()
    args.out.write_text(picture(json.loads(args.results.read_text())))


if __name__ == "__main__":
    main()
