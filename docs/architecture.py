"""Write docs/architecture.md and its picture from the imports of the package: ``python docs/architecture.py``.

A room is a folder or a module directly within ``src/mesascope``. Arrows point from a room to those that it
imports; those that follow from others are left out.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "mesascope"
# Modules that every room may use, and that would only hide the picture: all but two.
GROUND = {file.stem for file in SOURCE.glob("*.py")} - {"__init__", "__main__", "measurement", "study"}
PAGE = """# Architecture

Each row below is a folder or a file of `src/mesascope`, a *room* with one purpose. A room imports only rooms below it.
All rooms may also import the modules of the second table. `tests/test_layout.py` tests this, and
`python docs/architecture.py` made this page from the code.

![Rooms as boxes; arrows point to the rooms that a room imports](architecture.svg)

*Boxes are rooms; an arrow points to a room that is imported. Arrows that follow from others are left out.*

| room | it is |
|---|---|
{rows}

| module for all rooms | it is |
|---|---|
{ground}
"""


def rooms() -> dict[str, list[Path]]:
    """Modules of each room."""
    found: dict[str, list[Path]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        found.setdefault(file.relative_to(SOURCE).parts[0].removesuffix(".py"), []).append(file)
    return {name: files for name, files in found.items() if not name.startswith("__")}


def imports(files: list[Path]) -> set[str]:
    """Rooms that modules import, but for type checkers alone."""
    found = set()
    for file in files:
        tree = ast.parse(file.read_text())
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node))
        ]
        for node in ast.walk(tree):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            if names == ["mesascope"]:
                names = [f"mesascope.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("mesascope.")}
    return found


def below(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """All rooms on which each rests."""
    found: dict[str, set[str]] = {}
    for room in TopologicalSorter(arrows).static_order():
        found[room] = arrows[room].union(*(found[other] for other in arrows[room]))
    return found


def levels(arrows: dict[str, set[str]]) -> dict[str, int]:
    """Number of rooms on the longest way down from each."""
    found: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        found[room] = max((found[other] + 1 for other in arrows[room]), default=0)
    return found


def draw(arrows: dict[str, set[str]], file: Path) -> None:
    """Rooms by level, with arrows between them."""
    from mesascope.reports.figures import own_style

    with own_style():
        import matplotlib.pyplot as plt

        height = levels(arrows)
        places = {}
        for level in range(max(height.values()) + 1):
            row = sorted(room for room in arrows if height[room] == level)
            places |= {room: (index - (len(row) - 1) / 2 + 0.3 * (level % 2), level) for index, room in enumerate(row)}
        figure, axes = plt.subplots(figsize=(9, 1.0 * (max(height.values()) + 1)))
        style = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": "#0072B2"}
        boxes = {room: axes.text(*place, room, ha="center", va="center", bbox=style) for room, place in places.items()}
        patches, under = {room: text.get_bbox_patch() for room, text in boxes.items()}, below(arrows)
        axes.set(xlim=(-3, 3), ylim=(-0.6, max(height.values()) + 0.6))
        figure.canvas.draw()  # which gives the boxes their sizes
        for room, others in arrows.items():
            implied = set().union(*(under[one] for one in others))
            for other in sorted(others - implied):
                ends = {"patchA": patches[room], "patchB": patches[other], "arrowstyle": "->", "color": "0.5"}
                axes.annotate("", places[other], places[room], arrowprops=ends, zorder=0)
        axes.axis("off")
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def graph() -> dict[str, set[str]]:
    """Rooms that each room imports, but for the ground."""
    own = {room: imports(files) - GROUND - {room} for room, files in rooms().items() if room not in GROUND}
    return {room: others & own.keys() for room, others in own.items()}


def page() -> str:
    """The page: a row for each room, from the top, and for each module of the ground."""
    height, modules = levels(graph()), rooms()

    def row(room: str) -> str:
        tree = ast.parse(modules[room][0].read_text())
        first = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
        return f"| `{room}` | {first.replace('|', chr(92) + '|')} |"

    rows = map(row, sorted(height, key=lambda room: (-height[room], room)))
    return PAGE.format(ground="\n".join(map(row, sorted(GROUND))), rows="\n".join(rows))


if __name__ == "__main__":
    draw(graph(), HERE / "architecture.svg")
    (HERE / "architecture.md").write_text(page())
