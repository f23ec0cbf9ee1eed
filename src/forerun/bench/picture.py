"""A scatter of curves as an SVG file, written by hand: axes, a line and dots for each series, a legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Place = tuple[float, float, str]  # x, y, what to call it

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 170, 44, 56
# Colors that are told apart also without full color vision (Okabe and Ito), then the same ones with hollow dots.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def curves(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Place]]) -> str:
    """SVG text. A series of one place is a dot, of several a line through them in the order given."""
    places = [
        place for line in series.values() for place in line if math.isfinite(place[0]) and math.isfinite(place[1])
    ]
    xs, ys = (
        _Axis([p[0] for p in places], _LEFT, _WIDTH - _RIGHT),
        _Axis([p[1] for p in places], _HEIGHT - _BOTTOM, _TOP),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, size=15),
        *_grid(xs, ys),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, x_label, anchor="middle"),
        f'<text transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
    ]
    for index, (name, line) in enumerate(series.items()):
        parts += _series(index, name, [p for p in line if p in places], xs, ys)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """From values to places on the page, with round ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        room = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
        self.low, self.high = low - room, high + room
        self._start, self._end = start, end
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step = next(step * by for by in (1, 2, 5, 10) if (self.high - self.low) / (step * by) <= 7)
        first = math.ceil(self.low / step)
        self.ticks = [tick * step for tick in range(first, math.floor(self.high / step) + 1)]

    def __call__(self, value: float) -> float:
        return self._start + (self._end - self._start) * (value - self.low) / (self.high - self.low)


def _grid(xs: _Axis, ys: _Axis) -> list[str]:
    left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
    parts = []
    for tick in xs.ticks:
        parts.append(f'<path d="M{xs(tick):.1f} {top}V{bottom}" stroke="#e4e4e4"/>')
        parts.append(_text(xs(tick), bottom + 18, f"{tick:.10g}", anchor="middle"))
    for tick in ys.ticks:
        parts.append(f'<path d="M{left} {ys(tick):.1f}H{right}" stroke="#e4e4e4"/>')
        parts.append(_text(left - 8, ys(tick) + 4, f"{tick:.10g}", anchor="end"))
    return [*parts, f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#444"/>']


def _series(index: int, name: str, line: Sequence[Place], xs: _Axis, ys: _Axis) -> list[str]:
    color = _COLORS[index % len(_COLORS)]
    fill = color if index < len(_COLORS) else "white"
    parts = []
    if len(line) > 1:
        points = " ".join(f"{xs(x):.1f},{ys(y):.1f}" for x, y, _ in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>')
    for x, y, called in line:
        parts.append(
            f'<circle cx="{xs(x):.1f}" cy="{ys(y):.1f}" r="4.5" fill="{fill}" stroke="{color}" stroke-width="1.6">'
            f"<title>{escape(called)}: {x:.4g}, {y:.4g}</title></circle>"
        )
    at = _TOP + 10 + 20 * index
    mark = f'<circle cx="{_WIDTH - _RIGHT + 22}" cy="{at}" r="4.5" fill="{fill}" stroke="{color}" stroke-width="1.6"/>'
    return [*parts, mark, _text(_WIDTH - _RIGHT + 34, at + 4, name)]


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
