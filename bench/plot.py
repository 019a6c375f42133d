"""Line charts as SVG, without a plotting library."""

from pathlib import Path

from harness import RESULTS

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 56, 40, 250, 48
COLOURS = ["#888888", "#d62728", "#ff7f0e", "#bcbd22", "#9467bd", "#17becf", "#2ca02c", "#8c564b", "#1f77b4"]


def save_lines(name: str, title: str, lines: dict[str, dict[int, float]]) -> Path:
    """Write bench/results/<name>.svg: each line's values against rows per round, which are evenly spaced."""
    sizes = sorted({size for line in lines.values() for size in line})
    top = max(value for line in lines.values() for value in line.values())
    step = 0.5 if top < 6 else 1.0

    def x(size: int) -> float:
        return LEFT + sizes.index(size) * (WIDTH - LEFT - RIGHT) / max(1, len(sizes) - 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / (top * 1.05) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}" font-size="12">rows per round, N</text>',
    ]
    parts += [f'<text x="{x(n) - 6:.0f}" y="{HEIGHT - BOTTOM + 18}" font-size="12">{n}</text>' for n in sizes]
    for i in range(int(top * 1.05 / step) + 1):
        height = y(i * step)
        parts.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="20" y="{height + 4:.1f}" font-size="12">{i * step:g}</text>')
    for i, (label, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join(f"{x(size):.1f},{y(line[size]):.1f}" for size in sorted(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 20 + 20 * i}" font-size="12" fill="{colour}">{label}</text>'
        )
    path = RESULTS / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
    return path
