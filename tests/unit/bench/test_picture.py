"""The picture is well-formed SVG with every series on the page."""

from __future__ import annotations

from xml.etree import ElementTree

from forerun.bench.picture import curves

SVG = "{http://www.w3.org/2000/svg}"


def test_every_place_is_drawn_within_the_page() -> None:
    series = {
        "target": [(1.0, 1.0, "target")],
        "v3 <&>": [(0.99, 1.2, "v3:0.1"), (0.9, 1.9, "v3:0.5"), (float("nan"), 2.0, "nowhere")],
    }
    root = ElementTree.fromstring(curves("a < b", "x", "y", series))
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    dots = [dot for dot in root.iter(f"{SVG}circle") if dot.find(f"{SVG}title") is not None]
    assert [dot.find(f"{SVG}title").text for dot in dots] == [  # type: ignore[union-attr]
        "target: 1, 1",
        "v3:0.1: 0.99, 1.2",
        "v3:0.5: 0.9, 1.9",
    ]
    for dot in dots:
        assert 0 < float(dot.attrib["cx"]) < width
        assert 0 < float(dot.attrib["cy"]) < height
    right = [float(dot.attrib["cx"]) for dot in dots]
    assert right == sorted(right, reverse=True)
    assert len(root.findall(f"{SVG}polyline")) == 1
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for words in ("a < b", "x", "y", "target", "v3 <&>"):
        assert words in texts


def test_degenerate_curves_are_still_pictures() -> None:
    cases: list[dict[str, list[tuple[float, float, str]]]] = [
        {},
        {"one": []},
        {"one": [(0.0, 0.0, "zero")]},
        {str(i): [(1.0, 5.0, "same")] for i in range(9)},
    ]
    for series in cases:
        ElementTree.fromstring(curves("", "", "", series))
