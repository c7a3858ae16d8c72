#!/usr/bin/env python3
"""Shows a decode step's kernels and the gaps between them, from a trace by trace_kernels.cc.

    python3 bench/step_table.py trace.txt

A step begins with the kernel that fetches its inputs, and where there are steps that decode alone, only those count. Of
the steps with the most usual kernels and grids the last two thirds count, and every figure is the median over them.
Kernels overlap (programmatic dependent launch), so a kernel's own time says little: `adds` is from the latest end
before it to its own end, `begins` how long after that end it begins.
"""

import argparse
import collections
import re

OF_PROMPTS, OF_DECODE = "fetch_kernel", "write_decode_kernel"  # a step's first kernel


def kernels_of(path):
    """(begin, end, grid, name) of each, in order."""
    kernels = []
    with open(path, encoding="utf-8") as trace:
        for line in trace:
            begin, end, grid, _, name = line.rstrip("\n").split(" ", 4)
            own = re.findall(r"([a-z]+(?:_[a-z]+)*_kernel)", name)
            kernels.append((int(begin), int(end), grid, own[-1] if own else name[:32]))
    return sorted(kernels)


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def steps_of(kernels):
    """Pairs of a step and the begin of the next, those alone that are alike."""
    begins = [i for i, kernel in enumerate(kernels) if kernel[3] in (OF_PROMPTS, OF_DECODE)]
    steps = [kernels[begin:end] for begin, end in zip(begins, begins[1:])]
    first = OF_DECODE if any(step[0][3] == OF_DECODE for step in steps) else OF_PROMPTS

    def launches(step):
        return tuple((name, grid) for _, _, grid, name in step)

    usual = collections.Counter(launches(step) for step in steps if step[0][3] == first).most_common(1)[0][0]

    def is_usual(step):
        return launches(step) == usual

    pairs = zip(steps, steps[1:])
    alike = [(step, following[0][0]) for step, following in pairs if is_usual(step) and is_usual(following)]
    return alike[len(alike) // 3 :]


def covered(step):
    """Nanoseconds in which some kernel of the step runs."""
    total, end = 0, step[0][0]
    for kernel in step:
        total += max(0, kernel[1] - max(end, kernel[0]))
        end = max(end, kernel[1])
    return total


def rows_of(steps):
    """By kernel and grid, in order of first appearance: [count, own time, adds, begins], in microseconds, of a step."""
    rows = collections.OrderedDict()
    last_end = 0
    for i, kernel in enumerate(steps[0][0]):
        begin = median(step[i][0] - step[0][0] for step, _ in steps) / 1e3
        end = median(step[i][1] - step[0][0] for step, _ in steps) / 1e3
        row = rows.setdefault((kernel[3], kernel[2]), [0, 0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += median(step[i][1] - step[i][0] for step, _ in steps) / 1e3
        row[2] += end - last_end
        row[3] += begin - last_end
        last_end = max(last_end, end)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    steps = steps_of(kernels_of(parser.parse_args().trace))
    whole = median(after - step[0][0] for step, after in steps) / 1e3
    busy = median(covered(step) for step, _ in steps) / 1e3
    inside = median(max(k[1] for k in step) - step[0][0] - covered(step) for step, _ in steps) / 1e3
    print(f"{len(steps)} steps of {len(steps[0][0])} kernels, {whole:.1f} us from begin to begin")
    print(f"some kernel runs: {busy:.1f} us; gaps inside: {inside:.1f} us; to the next step: {whole - busy - inside:.1f} us")
    print(f"{'kernel':24} {'grid':>10} {'count':>5} {'own us':>8} {'adds us':>8} {'begins us':>9} {'adds in all':>11}")
    for (name, grid), (count, own, adds, begins) in rows_of(steps).items():
        each = f"{own / count:8.2f} {adds / count:8.2f} {begins / count:9.2f}"
        print(f"{name:24} {grid:>10} {count:5} {each} {adds:11.1f}")


if __name__ == "__main__":
    main()
