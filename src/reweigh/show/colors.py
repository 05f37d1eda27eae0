"""Colours on light and on dark ground: the same hue, as light as the ground needs."""

from __future__ import annotations

LIGHT_GROUND, DARK_GROUND = "#FFFFFF", "#16191D"
ENOUGH = 4.5  # contrast with the dark ground (WCAG 2)
STEPS = 50


def on_dark(color: str) -> str:
    """The colour, mixed with as little white as makes it visible on the dark ground."""
    channels = _channels(color)
    for k in range(STEPS + 1):
        mixed = _text([c + (255 - c) * k / STEPS for c in channels])
        if contrast(mixed, DARK_GROUND) >= ENOUGH:
            return mixed
    raise AssertionError("white is visible on every dark ground")


def contrast(one: str, other: str) -> float:
    """(L₁ + 0.05)/(L₂ + 0.05) of the relative luminances, the larger above."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    """0.2126 R + 0.7152 G + 0.0722 B of the linear channels."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in _channels(color))
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(color: str) -> list[float]:
    return [float(int(color[k : k + 2], 16)) for k in (1, 3, 5)]


def _text(channels: list[float]) -> str:
    return "#" + "".join(f"{round(c):02X}" for c in channels)
