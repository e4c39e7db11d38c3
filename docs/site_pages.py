"""Pages of the site that are made from published runs, docstrings and files of the repository."""

import importlib
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path

from mesascope.reports import counts_text, ledger_markdown
from mesascope.runs import open_run
from mesascope.studies import ledger_rows

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "mesascope", "tasks", "learners", "nets", "constructions", "lenses", "identification", "adapters", "training",
    "meta", "language", "ops", "runs", "studies", "evidence", "study", "reports", "records", "streams", "testing",
)  # fmt: skip


def write(app):
    """Write all generated pages to ``docs/generated``."""
    docs = Path(app.srcdir)
    folder = docs / "generated"
    pages = {
        f"{name.lower()}.md": re.sub(r"\]\(docs/", "](../", (ROOT / f"{name}.md").read_text())
        for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")
    }
    pages |= studies(docs / "results") | reference()
    for old in folder.rglob("*.*"):
        if str(old.relative_to(folder)) not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:  # an unchanged page is not built again
            path.write_text(text)


def studies(results):
    """A page for each published run, and a table of all."""
    runs = [open_run(path) for path in sorted(results.iterdir())]
    ledger, damaged = ledger_rows(runs)
    assert not damaged, damaged
    pages, rows = {}, []
    for run in runs:
        claims = [row for row in ledger if row.get("run") and Path(row["run"]).name == run.path.name]
        pages[f"studies/{run.path.name}.md"] = study_page(run, claims)
        rows.append(f"| [{run.path.name}]({run.path.name}.md) | {run.config['question']} | {counts_text(claims)} |")
    pages["studies/index.md"] = (
        "# Studies\n\nEach page shows the figures and claims of one published run, as `docs/results` holds them.\n\n"
        "| run | question | claims |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    )
    return pages


def study_page(run, claims):
    """Question, provenance, figures and claims of one run."""
    path = run.path
    config = run.config
    minutes = sum(json.loads((path / "timing.json").read_text()).values()) / 60
    parts = [
        f"# {path.name}",
        f"**{config['question']}**",
        f"Source: {config['source']}.",
        f"Run: `{config['command']}`, {minutes:.1f} minutes on {config['machine']} ({config['device']}); "
        f"mesascope {config['versions']['mesascope']}, PyTorch {config['versions']['torch']}. "
        f"Verdicts: {counts_text(claims)}. Files: `docs/results/{path.name}`.",
    ]
    if config["deviations"]:
        parts.append("The preset differs from the source:\n\n" + "\n".join(f"- {one}" for one in config["deviations"]))
    captions = json.loads((path / "figures" / "captions.json").read_text())
    parts += ["## Figures"] if captions else []
    for name, caption in captions.items():
        parts.append(f"![{caption.replace('[', '(').replace(']', ')')}](../../results/{path.name}/figures/{name}.svg)")
        parts.append(f"*{caption}*")
    text = ledger_markdown(claims).replace(f"{ROOT}/", "")
    table = re.search(r"^\| claim \|.*(?:\n\|.*)*", text, flags=re.M)
    parts += ["## Claims", "Intervals are at 99 % ([how they are made](../../evidence.md)).", table[0] if table else ""]
    return "\n\n".join(parts) + "\n"


def reference():
    """A page for each package, with the docstrings of the names that it defines, and a list of all."""
    seen = set()
    names = {package: package if package == "mesascope" else f"mesascope.{package}" for package in PACKAGES}
    pages = {f"reference/{package}.rst": package_page(name, seen) for package, name in names.items()}
    listed = "\n".join(f"   {package}" for package in PACKAGES)
    pages["reference/index.rst"] = (
        "Reference\n=========\n\nPublic names, from their docstrings; *[source]* shows the code. The names of "
        ":doc:`mesascope` itself are stable; others are provisional (:doc:`../../versions`).\n\n"
        f".. toctree::\n   :maxdepth: 1\n\n{listed}\n"
    )
    return pages


def package_page(name, seen):
    """The public names of a package; one that another package shows on its own page is listed there."""
    module = importlib.import_module(name)
    public = [one for one in module.__all__ if not one.startswith("__")]
    lines = [name, "=" * len(name), "", f".. py:module:: {name}", ""]
    elsewhere = []
    for one in public:
        found = getattr(module, one)
        home = getattr(found, "__module__", name) or name
        key = (home, getattr(found, "__qualname__", one))
        package = ".".join(home.split(".")[:2])
        has_page = package.removeprefix("mesascope.") in PACKAGES
        if (has_page if name == "mesascope" else package != name) or key in seen:
            elsewhere.append((f"`~{package}.{one}`", found))
            continue
        seen.add(key)
        lines += directive(name, one, found)
    text = rst(inspect.getdoc(module) or "")
    if name == "mesascope":
        text = [f"- {linked}: {_plain(_first(found))}" for linked, found in elsewhere]
    elif elsewhere:
        names = ", ".join(linked for linked, _ in elsewhere)
        lines += [f"Names of other packages that ``{name}`` offers too: {names}."]
    lines[4:4] = ["", *text, ""]
    return "\n".join(lines) + "\n"


def _first(found):
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())


def directive(module, name, found):
    """The directive of autodoc for one object."""
    if inspect.isclass(found):
        return [f".. autoclass:: {module}.{name}", "   :members:", ""]
    if callable(found):
        return [f".. autofunction:: {module}.{name}", ""]
    values = ", ".join(f"``{one}``" for one in found) if isinstance(found, Iterable) else f"``{found!r}``"
    return [f".. py:data:: {module}.{name}", "", f"   {values}", ""]


def link(app, docname, source):
    """Point links to published runs to their pages, and show paths outside of docs as text."""
    if docname.startswith("generated/studies"):
        return
    up = "../" * docname.count("/")
    text = re.sub(r"\]\((?:\.\./docs/)?results\)", f"]({up}generated/studies/index.md)", source[0])
    text = re.sub(r"\]\((?:\.\./docs/)?results/([\w+-]+)\)", rf"]({up}generated/studies/\1.md)", text)
    text = re.sub(
        r"\]\((?:\.\./)*(CONTRIBUTING|CHANGELOG|SECURITY)\.md\)", lambda m: f"]({up}generated/{m[1].lower()}.md)", text
    )
    text = re.sub(r"\]\((?:\.\./)+README\.md(?:#[\w-]*)?\)", f"]({up}index.md)", text)
    text = re.sub(r"(?<!!)\[([^\]]*)\]\((?:\.\./)+(?:benchmarks|tests|src)[^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\(explore-page\.html\)", r'<a href="explore-page.html">\1</a>', text)
    source[0] = text


def source(app, module, attribute):
    """The module whose source page shows an attribute: that of its class, not of the attribute's value."""
    return getattr(getattr(importlib.import_module(module), attribute.split(".")[0], None), "__module__", None)


def escape(app, what, name, obj, options, lines):
    """Protect the signs of formulas in docstrings, and drop what Python writes about fields of named tuples."""
    lines[:] = rst("\n".join(line for line in lines if not line.startswith("Alias for field number")))


def rst(text):
    """A docstring as lines of reStructuredText: ``|``, ``*`` and a last ``_`` of a word are literal characters."""
    lines, doctest, table = [], False, []
    for line in text.split("\n"):
        doctest = bool(line.strip()) and (doctest or line.lstrip().startswith(">>>"))
        border = re.fullmatch(r"\s*=+( +=+)+", line)
        if border or table:
            table.append(line)
            if border and len(table) > 1:
                lines += _table(table)
                table = []
        else:
            lines.append(line if doctest else _plain(line))
    return lines


def _table(lines):
    """A simple table as a list of its cells, which may then grow."""
    starts = [found.start() for found in re.finditer("=+", lines[0])]
    rows = [[line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] for line in lines[1:-1]]
    cells = (f"{'     ' if at else '   * '}- {_plain(cell)}" for row in rows for at, cell in enumerate(row))
    return ["", ".. list-table::", "", *cells, ""]


def _plain(line):
    parts = re.split(r"(``.*?``|`[^`]*`)", line)
    return "".join(one if one.startswith("`") else re.sub(r"([|*]|_(?=\W|$))", r"\\\1", one) for one in parts)
